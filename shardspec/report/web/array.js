// What a click on an array opens: its answer, every rule tried, the other targets, and who holds which part.

const ROWS_DRAWN = 32;
const COLUMNS_DRAWN = 16;
const TABLES_DRAWN = 4;

/** Return numbers of devices, long runs short: `0-3`, `0 4`, `0 8 .. 56`. */
function devicesText(devices) {
  const [first, last] = [devices[0], devices.at(-1)];
  if (devices.length > 2 && last - first === devices.length - 1) return `${first}-${last}`;
  if (devices.length <= 4) return devices.join(" ");
  return `${first} ${devices[1]} .. ${last}`;
}

/** Return into how many parts a dimension is split. */
function waysOf(of, dim) {
  const sizes = new Map(of.mesh);
  return dim[3].reduce((ways, axis) => ways * (sizes.get(axis) ?? 1), 1);
}

/** Return the dimensions in the order of the picture: outer ones, then down, then across. */
function sidesOf(of, dims) {
  const split = dims.map((_, at) => at).filter((at) => waysOf(of, dims[at]) > 1);
  const whole = dims.map((_, at) => at).filter((at) => !split.includes(at));
  const inner = split.length > 1 ? split.slice(-2) : [...split, ...whole.slice(split.length - 2)];
  return { outer: split.filter((at) => !inner.includes(at)), down: inner[0] ?? null, across: inner[1] ?? null };
}

/** Return the devices that hold each part: by the part of each dimension, in mesh order. */
function holdersOf(of, dims, order) {
  const found = new Map();
  const sizes = new Map(of.mesh);
  const count = of.mesh.reduce((all, [, size]) => all * size, 1);
  for (let device = 0; device < count; device += 1) {
    const place = new Map();
    let rest = device;
    for (const [name, size] of [...of.mesh].reverse()) {
      place.set(name, rest % size);
      rest = Math.floor(rest / size);
    }
    const part = order.map((at) => dims[at][3].reduce((index, axis) => index * (sizes.get(axis) ?? 1) + (place.get(axis) ?? 0), 0));
    const key = part.join();
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(device);
  }
  return found;
}

/** Return the elements of a part: `0:1024`. */
function rangeText(of, dim, part) {
  const ways = waysOf(of, dim);
  const [, size, shard] = dim;
  if (ways === 1) return size === null ? "all" : `all ${size}`;
  if (size === null || shard === null) return `${part + 1} of ${ways}`;
  const [start, end] = [part * shard, Math.min((part + 1) * shard, size)];
  return start < end ? `${start}:${end}` : "empty";
}

/** Return tables of who holds which part of an array or an activation. */
function partsOf(of, laid, light) {
  const { outer, down, across } = sidesOf(of, laid.dims);
  const order = [...outer, down, across].filter((at) => at !== null);
  const holders = holdersOf(of, laid.dims, order);
  const count = (at) => (at === null ? 1 : waysOf(of, laid.dims[at]));
  const parts = product(outer.map(count));
  const cell = (part, row, column) => {
    const key = [...part, ...(down === null ? [] : [row]), ...(across === null ? [] : [column])].join();
    const devices = holders.get(key);
    return el("td", {}, el("button", { type: "button", class: "part", click: (event) => light(devices, event.currentTarget) }, devicesText(devices)));
  };
  const side = (...cell) => (down === null ? [] : [el(...cell)]);
  const [rows, columns] = [Math.min(count(down), ROWS_DRAWN), Math.min(count(across), COLUMNS_DRAWN)];
  const shown = parts.slice(0, TABLES_DRAWN).map((part) => {
    const title = outer.map((at, side) => `dim ${at} ${laid.dims[at][0]}: ${rangeText(of, laid.dims[at], part[side])}`).join("; ");
    const head = across === null ? [] : [el("thead", {}, el("tr", {}, ...side("td"), ...range(columns).map((column) => el("th", { scope: "col" }, rangeText(of, laid.dims[across], column)))))];
    const body = range(rows).map((row) =>
      el("tr", {}, ...side("th", { scope: "row" }, down === null ? "" : rangeText(of, laid.dims[down], row)), ...range(columns).map((column) => cell(part, row, column)))
    );
    return el("div", { class: "holders" }, el("table", { class: "parts" }, title ? el("caption", {}, title) : null, ...head, el("tbody", {}, ...body)));
  });
  const left = [
    [count(down) - rows, "more row"],
    [count(across) - columns, "more column"],
    [parts.length - shown.length, "more table"],
  ];
  const rest = left.filter(([number]) => number > 0).map(([number, what]) => counted(number, what)).join(", ");
  return [el("p", { class: "quiet" }, sidesText(laid, down, across)), ...shown, ...(rest ? [el("p", { class: "quiet" }, `and ${rest}`)] : [])];
}

function sidesText(laid, down, across) {
  const sides = [[down, "down"], [across, "across"]].filter(([at]) => at !== null);
  const said = sides.map(([at, where]) => `dim ${at} ${laid.dims[at][0]} ${where}`).join(", ");
  return `${said ? `${said}; ` : ""}a cell is a part: the devices that hold it, in mesh order. Choose one to see them on the machine.`;
}

function range(count) {
  return Array.from({ length: count }, (_, at) => at);
}

function product(counts) {
  return counts.reduce((all, count) => all.flatMap((part) => range(count).map((at) => [...part, at])), [[]]);
}

// the sheet that opens

/** Go to a row of arrays, or to one array of it. */
function openArray(row, path = null) {
  goTo({ array: path ?? (row.paths.length === 1 ? DATA.paths[row.paths[0]] : row.name), activation: "" });
}

function showArray(row, one) {
  const first = DATA.paths[row.paths[0]];
  const size = binaryBytes(row.bytes / row.paths.length);
  const title = one ?? row.name;
  const note = one ? "" : `${counted(row.paths.length, "array")}, all alike`;
  const answer = [
    ["type", row.type],
    ["layout", row.answer],
    ["shard", `${row.shard}, ${size} per device${row.host ? " in host memory" : ""}`],
  ];
  openSheet(title, note, answer, row, one ?? first);
}

function openActivation(each) {
  goTo({ activation: each.name, array: "" });
}

function showActivation(each) {
  openSheet(each.name, "activation", [["names", each.type], ["layout", each.answer]], each, each.name);
}

function openSheet(title, note, answer, laid, subject) {
  const sheet = document.getElementById("sheet");
  const reason = DATA.reasons[laid.why];
  const lines = [...answer, ...reason.facts];
  const picture = el("div", { class: "picture" });
  const told = el("p", { class: "quiet", "aria-live": "polite" });
  let shown = null;
  const light = (devices, button) => {
    for (const each of sheet.querySelectorAll("button.part[aria-pressed]")) each.removeAttribute("aria-pressed");
    button.setAttribute("aria-pressed", "true");
    told.textContent = `held by ${counted(devices.length, "device")}: ${devicesText(devices)}`;
    shown?.hold(devices);
  };
  const name = [...target().name].every((char) => /[\w@.-]/.test(char)) ? target().name : "TARGET";
  const ask = `shardspec explain ${quoted(subject)} --target ${name.split("@").at(-1)}`;
  document.getElementById("sheet-body").replaceChildren(
    el("h2", { id: "sheet-title", class: "path" }, title),
    el("button", { type: "button", click: (event) => copy(subject, event.currentTarget) }, "Copy the path"),
    el("p", { class: "quiet" }, [note, `on ${target().name}`].filter(Boolean).join(" ")),
    el("dl", {}, ...lines.flatMap(([label, text]) => [el("dt", {}, label), el("dd", { class: "code" }, text)])),
    ...(reason.dims.length ? [el("h3", {}, "Rules tried"), triedTable(reason.dims)] : []),
    el("h3", {}, "Who holds which part"),
    ...partsOf(target(), laid, light),
    told,
    picture,
    ...elsewhere(subject, laid),
    el("p", { class: "quiet" }, "In a terminal: ", el("code", {}, ask))
  );
  if (!sheet.open) sheet.showModal();
  sheet.scrollTop = 0;
  const places = placesOf(target());
  if (places && places.count <= MOST_DEVICES) shown = new Machine(picture, target(), { held: [] });
  document.getElementById("sheet-close").focus();
}

/** Copy a text; where a browser does not let a page do that, select what the button stands beside. */
async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(document.getElementById("sheet-title"));
  }
}

function quoted(text) {
  return /^[\w/.@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** Return the table of the rules that were tried, in their order, and what became of each. */
function triedTable(dims) {
  const rows = dims.map(([dim, name, size, asked, outcome, place]) => {
    const taken = /^(TAKEN|ADDED)/.test(outcome);
    const mark = taken ? "taken" : outcome.startsWith("replicated") ? "" : "refused";
    const cells = [[name, "code"], [size, "number"], [asked, "code"], [outcome, mark], [place, "code"]];
    const head = dim ? el("th", { scope: "row" }, dim) : el("td");
    return el("tr", {}, head, ...cells.map(([text, kind]) => el("td", { class: kind }, text)));
  });
  const heads = ["dim", "name", "size", "rule asks", "what became of it", "where"];
  const head = el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text))));
  return el("div", { class: "scroll", tabindex: 0 }, el("table", { class: "tried" }, head, el("tbody", {}, ...rows)));
}

/** Return how the same array lies on the other targets. */
function elsewhere(subject, laid) {
  const found = DATA.targets.map((of, at) => [of, at, sameIn(of, subject, laid)]).filter(([, at, same]) => at !== here.at && same);
  if (!found.length) return [];
  const rows = found.map(([of, at, same]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, el("button", { type: "button", class: "link", click: () => go(at, same) }, of.name)),
      el("td", { class: "code" }, same.spec),
      el("td", { class: "number" }, same.paths ? binaryBytes(same.bytes / same.paths.length) : "")
    )
  );
  return [el("h3", {}, "On the other targets"), el("div", { class: "scroll", tabindex: 0 }, el("table", {}, el("tbody", {}, ...rows)))];
}

function go(at, same) {
  goTo({ at, ...(same.paths?.length > 1 ? { array: same.name } : {}) });
}

function sameIn(of, subject, laid) {
  if (!laid.paths) return of.activations.find((each) => each.name === subject);
  return of.rows.find((row) => row.paths.some((at) => DATA.paths[at] === subject));
}

function startSheet() {
  const sheet = document.getElementById("sheet");
  // the place changes at once: the event `close` comes later, perhaps after the next click
  const leave = () => {
    goTo({ array: "", activation: "" });
    sheet.close();
  };
  document.getElementById("sheet-close").addEventListener("click", leave);
  sheet.addEventListener("click", (event) => {
    if (event.target === sheet) leave();
  });
  sheet.addEventListener("close", () => sheet.open || goTo({ array: "", activation: "" }));
  onPlace((now, before) => {
    if (now.array === before.array && now.activation === before.activation && now.at === before.at) return;
    const { rows, activations } = target();
    const group = rows.find((row) => row.paths.length > 1 && row.name === now.array);
    const row = group ?? rows.find((each) => each.paths.some((at) => DATA.paths[at] === now.array));
    const activation = activations.find((each) => each.name === now.activation);
    if (row) showArray(row, group ? null : now.array);
    else if (activation) showActivation(activation);
    else sheet.close();
  });
}
