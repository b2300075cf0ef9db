// The arrays as areas by their bytes on a device, in the colours of the mesh axes that split them.

const AREAS = 300;

/** Return rectangles for values, largest first, as square as can be (Bruls, Huizing, van Wijk 2000). */
function squarified(values, width, height) {
  const scale = (width * height) / values.reduce((sum, value) => sum + value, 0);
  const areas = values.map((value) => value * scale);
  const rectangles = [];
  let [x, y, w, h] = [0, 0, width, height];
  let at = 0;
  while (at < areas.length) {
    const side = Math.min(w, h);
    let row = [areas[at]];
    while (at + row.length < areas.length && worst([...row, areas[at + row.length]], side) <= worst(row, side)) {
      row.push(areas[at + row.length]);
    }
    const depth = side ? row.reduce((sum, area) => sum + area, 0) / side : 0;
    let along = 0;
    for (const area of row) {
      const length = depth ? area / depth : 0;
      rectangles.push(w >= h ? [x, y + along, depth, length] : [x + along, y, length, depth]);
      along += length;
    }
    if (w >= h) [x, w] = [x + depth, w - depth];
    else [y, h] = [y + depth, h - depth];
    at += row.length;
    row = [];
  }
  return rectangles;
}

function worst(row, side) {
  const sum = row.reduce((total, area) => total + area, 0);
  const [most, least] = [Math.max(...row), Math.min(...row)];
  return Math.max((side * side * most) / (sum * sum), (sum * sum) / (side * side * least));
}

/** Return the rows with bytes on the device, the largest first, and the rest as one. */
function areasOf() {
  const rows = target().rows.filter((row) => row.bytes && !row.host).sort((a, b) => b.bytes - a.bytes);
  const rest = rows.slice(AREAS);
  if (!rest.length) return { rows, rest: 0 };
  return { rows: rows.slice(0, AREAS), rest: rest.reduce((sum, row) => sum + row.bytes, 0), count: rest.length };
}

function showTreemap() {
  const box = document.getElementById("treemap");
  const { rows, rest, count } = areasOf();
  const width = Math.max(box.clientWidth, 280);
  const height = Math.round(Math.min(460, Math.max(300, width * 0.5)));
  const values = rest ? [...rows.map((row) => row.bytes), rest] : rows.map((row) => row.bytes);
  const places = squarified(values, width, height);
  const cells = rows.map((row, at) => area(row, places[at], at));
  if (rest) cells.push(otherAreas(places[rows.length], count, rest));
  const label = `Arrays by bytes on a device of ${target().name}; the table has the same figures`;
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label }, ...cells);
  drawn.addEventListener("keydown", (event) => stepThrough(event, drawn));
  box.replaceChildren(values.length ? drawn : el("p", { class: "quiet" }, "No array takes memory of a device here."));
  showKeys(rows);
  markTreemap();
}

function area(row, [x, y, width, height], at) {
  const said = `${row.name}: ${row.spec}, ${binaryBytes(row.bytes)} per device`;
  const inside = { x: x + 1, y: y + 1, width: Math.max(width - 2, 0.5), height: Math.max(height - 2, 0.5) };
  const button = svg(
    "g",
    {
      tabindex: at ? "-1" : "0",
      role: "button",
      "aria-label": said,
      click: () => openArray(row),
      keydown: (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          openArray(row);
        }
      },
    },
    svg("title", {}, said),
    svg("rect", { ...inside, rx: 2, fill: fillOf(axesOf(row)) })
  );
  const group = svg("g", { class: row.whole ? "area whole" : "area" }, button, ...areaText(row, x, y, width, height));
  group.areaOf = row;
  return group;
}

/** Return the lines for which an area has room: the end of the path, layout and bytes. */
function areaText(row, x, y, width, height) {
  const room = Math.floor((width - 14) / 6.9);
  if (room < 5 || height < 22) return [];
  const most = Math.floor((height - 8) / 16);
  const lines = ending(row.name, room, Math.min(Math.max(most - 2, 1), 3));
  if (most > lines.length) lines.push(`${row.whole ? "whole" : row.spec}`.slice(0, room));
  if (most > lines.length) lines.push(binaryBytes(row.bytes).slice(0, room));
  const widest = Math.max(...lines.map((line) => line.length));
  const back = svg("rect", { class: "plate", x: x + 4, y: y + 4, width: widest * 6.9 + 8, height: lines.length * 16 + 4, rx: 3 });
  return [back, ...lines.map((line, at) => svg("text", { x: x + 8, y: y + 17 + at * 16 }, line))];
}

/** Return the end of a path in a few lines, broken where its names begin. */
function ending(name, room, most) {
  const lines = [""];
  for (const part of name.split(/(?<!\.)(?=[/.](?!\.))/).reverse()) {
    if (lines[0] && (part + lines[0]).length > room) {
      if (lines.length === most) {
        if (lines[0].length < room) lines[0] = `…${lines[0]}`;
        return lines;
      }
      lines.unshift("");
    }
    const line = part + lines[0];
    lines[0] = line.length > room ? `…${line.slice(1 - room)}` : line;
  }
  return lines;
}

function otherAreas([x, y, width, height], count, bytes) {
  const said = `${counted(count, "smaller row")}: ${binaryBytes(bytes)} per device`;
  const inside = { x: x + 1, y: y + 1, width: Math.max(width - 2, 0.5), height: Math.max(height - 2, 0.5) };
  return svg("g", { class: "area" }, svg("title", {}, said), svg("rect", { ...inside, class: "others" }));
}

/** Go to the next area, or the one before, by the arrow keys. */
function stepThrough(event, drawn) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const cells = [...drawn.querySelectorAll("[role=button]")];
  const at = Math.min(Math.max(cells.indexOf(document.activeElement) + step, 0), cells.length - 1);
  cells.forEach((cell, each) => cell.setAttribute("tabindex", each === at ? "0" : "-1"));
  cells[at].focus();
}

/** Show what each colour means, and how many bytes of a device it is. */
function showKeys(rows) {
  const sizes = new Map();
  for (const row of rows) {
    const axes = axesOf(row);
    const key = axes.join(" + ") || "whole on every device";
    const known = sizes.get(key) ?? { axes, bytes: 0 };
    sizes.set(key, { axes, bytes: known.bytes + row.bytes });
  }
  const all = rows.reduce((sum, row) => sum + row.bytes, 0);
  const keys = [...sizes].sort((a, b) => b[1].bytes - a[1].bytes).map(([name, { axes, bytes }]) =>
    el("span", { class: "key" }, swatchOf(axes), `${name} ${binaryBytes(bytes)}, ${percent(bytes, all)}`)
  );
  document.getElementById("treemap-keys").replaceChildren(...keys);
}

/** Let the areas that the search does not mean step back. */
function markTreemap() {
  const meant = new Set(table.matching);
  for (const cell of document.querySelectorAll("#treemap .area")) {
    cell.classList.toggle("back", words().length > 0 && !meant.has(cell.areaOf));
  }
}

function startTreemap() {
  onTarget(showTreemap);
  let width = document.getElementById("treemap").clientWidth;
  new ResizeObserver(() => {
    const now = document.getElementById("treemap").clientWidth;
    if (now !== width) {
      width = now;
      requestAnimationFrame(showTreemap);
    }
  }).observe(document.getElementById("treemap"));
}
