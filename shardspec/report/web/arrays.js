// The table of arrays: layers as one row, a search over all their paths, and what a row opens.

const ROWS_AT_ONCE = 100;
const table = { order: "name", down: false, shown: ROWS_AT_ONCE, matching: [], texts: new Map() };

/** Return what a search looks at, of each row of the target. */
function searchTexts() {
  if (!table.texts.has(here.at)) {
    const texts = target().rows.map((row) => {
      const paths = row.paths.map((at) => DATA.paths[at]).join("\n");
      const names = row.dims.map((dim) => dim[0]).join(" ");
      return `${row.name}\n${paths}\n${row.type} ${row.spec} ${names} ${row.rules}`.toLowerCase();
    });
    table.texts.set(here.at, texts);
  }
  return table.texts.get(here.at);
}

function words() {
  return document.getElementById("search").value.toLowerCase().split(/\s+/).filter(Boolean);
}

/** Return the rows in which every word of the search stands. */
function matchingRows() {
  const wanted = words();
  const texts = searchTexts();
  const found = target().rows.filter((_, at) => wanted.every((word) => texts[at].includes(word)));
  const key = (row) => String(row[table.order]);
  if (table.order !== "name" || table.down) found.sort((a, b) => compare(key(a), key(b)));
  return table.down ? found.reverse() : found;
}

/** Show the table anew, and say how much of all it is. */
function showArrays() {
  table.matching = matchingRows();
  const largest = target().rows.reduce((most, row) => Math.max(most, row.bytes), 0);
  const rows = table.matching.slice(0, table.shown);
  const body = document.getElementById("rows");
  body.replaceChildren(...rows.map((row) => arrayRow(row, largest)));
  const left = table.matching.length - rows.length;
  const more = document.getElementById("more");
  more.hidden = left <= 0;
  more.textContent = `Show ${Math.min(left, 1000).toLocaleString("en")} more of ${counted(left, "row")}`;
  const held = table.matching.filter((row) => !row.host);
  const bytes = held.reduce((sum, row) => sum + row.bytes, 0);
  const arrays = table.matching.reduce((sum, row) => sum + row.paths.length, 0);
  const of = words().length ? ` of ${target().rows.reduce((sum, row) => sum + row.paths.length, 0)}` : "";
  document.getElementById("found").textContent =
    `${arrays.toLocaleString("en")}${of} ${arrays === 1 && !of ? "array" : "arrays"} in ` +
    `${counted(table.matching.length, "row")}, = ${binaryBytes(bytes)} per device`;
}

function arrayRow(row, largest) {
  const name = el("button", { type: "button", class: "link path", click: () => openArray(row) }, row.name);
  const heading = el("th", { scope: "row" }, name);
  if (row.paths.length > 1) heading.append(layersOf(row));
  heading.append(...found(row));
  return el(
    "tr",
    { class: row.whole ? "whole" : "" },
    heading,
    el("td", { class: "code" }, row.type),
    el("td", { class: "code spec" }, swatchOf(axesOf(row)), row.spec),
    el("td", { class: "code wide" }, row.shard),
    el("td", { class: "number" }, binaryBytes(row.bytes), share(row.bytes, largest)),
    el("td", { class: "code wide rules" }, el("span", { title: row.rules }, row.rules))
  );
}

function share(bytes, largest) {
  const width = largest ? Math.max((100 * bytes) / largest, 0.5) : 0;
  const part = svg("rect", { width, height: 3, class: "share" });
  return svg("svg", { class: "share", viewBox: "0 0 100 3", preserveAspectRatio: "none", "aria-hidden": "true" }, part);
}

/** Return what lists the arrays of a row when it is opened. */
function layersOf(row) {
  const list = el("ul", { class: "layers" });
  const opened = el("details", { class: "layers" }, el("summary", {}, counted(row.paths.length, "array")), list);
  opened.addEventListener("toggle", () => {
    if (opened.open && !list.children.length) list.append(...row.paths.map((at) => member(row, at)));
  });
  return opened;
}

function member(row, at) {
  const open = () => openArray(row, DATA.paths[at]);
  return el("li", {}, el("button", { type: "button", class: "link path", click: open }, DATA.paths[at]));
}

/** Return the arrays of a row that a search means, where it means some of them. */
function found(row) {
  const wanted = words();
  if (!wanted.length || row.paths.length === 1) return [];
  const about = `${row.name} ${row.type} ${row.spec} ${row.rules}`.toLowerCase();
  const narrow = wanted.filter((word) => !about.includes(word));
  if (!narrow.length) return [];
  const meant = row.paths.filter((at) => narrow.every((word) => DATA.paths[at].toLowerCase().includes(word)));
  if (!meant.length || meant.length === row.paths.length) return [];
  const more = meant.length > 3 ? [el("li", { class: "quiet" }, `and ${meant.length - 3} more`)] : [];
  return [el("ul", { class: "layers" }, ...meant.slice(0, 3).map((at) => member(row, at)), ...more)];
}

function orderArrays(order) {
  table.down = table.order === order ? !table.down : order === "bytes";
  table.order = order;
  for (const button of document.querySelectorAll("[data-order]")) {
    const is = button.dataset.order === order;
    button.closest("th").setAttribute("aria-sort", is ? (table.down ? "descending" : "ascending") : "none");
  }
  showArrays();
}

function showActivations() {
  const some = target().activations;
  document.getElementById("activations").hidden = !some.length;
  for (const head of document.querySelectorAll("#activation-table thead th")) head.ariaSort = null;
  document.getElementById("activation-rows").replaceChildren(
    ...some.map((each) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, el("button", { type: "button", class: "link path", click: () => openActivation(each) }, each.name)),
        el("td", { class: "code" }, each.type),
        el("td", { class: "code spec" }, swatchOf(axesOf(each)), each.spec)
      )
    )
  );
}

function startArrays() {
  const search = document.getElementById("search");
  search.addEventListener("input", () => goTo({ find: search.value }, true));
  onPlace((now, before) => {
    if (now.find === before.find) return;
    if (search.value !== now.find) search.value = now.find;
    table.shown = ROWS_AT_ONCE;
    showArrays();
    markTreemap();
  });
  document.getElementById("more").addEventListener("click", () => {
    table.shown += 1000;
    showArrays();
  });
  for (const button of document.querySelectorAll("[data-order]")) {
    button.addEventListener("click", () => orderArrays(button.dataset.order));
  }
  const csv = () => [
    ["array", "type", "layout", "shard", "bytes per device", "rules"],
    ...table.matching.flatMap((row) => row.paths.map((at) => [DATA.paths[at], row.type, row.spec, row.shard, String(row.bytes / row.paths.length), row.rules])),
  ];
  document.getElementById("more").after(csvButton(`${document.title} arrays`, csv));
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea, dialog");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      search.focus();
    }
  });
  window.addEventListener("beforeprint", () => {
    table.shown = Math.max(table.shown, 2000);
    showArrays();
  });
  onTarget(() => {
    table.shown = ROWS_AT_ONCE;
    showArrays();
    showActivations();
  });
}
