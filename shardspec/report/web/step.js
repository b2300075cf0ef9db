// The time line of a step: a brush chooses what of it is shown, a cursor says what runs and what is
// alive. Times of slices are read off their paths, a millionth of the step for each unit.

const STEP = 1000000;
const MOST_ALIVE = 12;
// Slices between which a line is drawn; of more they would be nothing but lines.
const MOST_EDGES = 150;

/** Return seconds as Python writes them: `1.92 s`, `4.10 ms`. */
function secondsText(seconds) {
  if (!seconds) return "0 s";
  const [unit, scale] = seconds >= 0.9995 ? ["s", 1] : seconds >= 0.9995e-3 ? ["ms", 1e-3] : ["us", 1e-6];
  return `${threeFigures(seconds / scale)} ${unit}`;
}

function known(text, what) {
  return text === "unknown" ? `${what} unknown` : text;
}

/** Return the slices of a row by their start: [start, width, number of what it says]. */
function slicesOf(lane) {
  const found = [];
  for (const path of lane.querySelectorAll("path[data-labels]")) {
    const labels = path.dataset.labels.split(" ");
    let x = 0;
    [...path.getAttribute("d").matchAll(/(?:m(\d+) 0)?h(\d+)/g)].forEach(([, gap, width], at) => {
      const start = x + Number(gap ?? 0);
      x = start + Number(width);
      found.push([start, Number(width), Number(labels[at])]);
    });
  }
  return found.sort((a, b) => a[0] - b[0]);
}

// What the dimension of a scanned stack is called.
const STACKED = new Set(["layers", "layer", "blocks", "stage", "stages"]);

/** Return the layers of a target as its arrays name them: a function from `h_#/up` to its [`h_#`, 24].
 *
 * It returns null for other arrays, and undefined for what is no array.
 */
function stacksOf(of) {
  const known = new Map();
  const numbers = new Map();
  for (const row of of.rows) {
    const over = row.dims.find(([name, , size]) => STACKED.has(name) && size);
    for (const path of row.paths.map((at) => DATA.paths[at])) {
      const number = /\d+/.exec(path);
      const name = number ? `${path.slice(0, number.index)}#` : "";
      const layers = numbers.get(name) ?? new Map();
      numbers.set(name, layers.set(number?.[0], (layers.get(number?.[0]) ?? 0) + 1));
      const [before] = over ? path.split(over[0]) : [""];
      const stacked = over && [before === path ? path.split(/[/.]/)[0] : before + over[0], over[2]];
      known.set(path.replace(/\d+/g, "#"), { name, stacked });
    }
  }
  return (array) => {
    if (!known.has(array)) return undefined;
    const { name, stacked } = known.get(array);
    const layers = [...numbers.get(name).values()];
    if (name && layers.length > 1 && Math.max(...layers) > 1) return [name, layers.length];
    return stacked ?? null;
  };
}

/** Return the layer of each slice of what computes: [stack, layer], or null outside of all layers.
 *
 * The layer is null for what runs in each of them, and its name is that of the first. What reads no
 * array of a layer is in that of the slice before it.
 */
function layersOfSlices(slices, { labels, words }, of) {
  const stackOf = stacksOf(of);
  const counts = new Map();
  for (const [, , label] of slices) counts.set(label, (counts.get(label) ?? 0) + 1);
  const seen = new Map();
  const least = new Map();
  let now = null;
  return slices.map(([, , label]) => {
    const [array, phase, runs] = labels[label].slice(3).map((word) => words[word]);
    const times = Number(runs.slice(1));
    const stack = stackOf(array);
    if (stack === null) now = null;
    else if (stack) {
      const [name, size] = stack;
      const order = Math.floor(((seen.get(label) ?? 0) * size) / counts.get(label));
      seen.set(label, (seen.get(label) ?? 0) + 1);
      const isEach = counts.get(label) % size !== 0;
      now = [stack, isEach ? null : phase === "forward" ? order : size - 1 - order];
      if (isEach) least.set(name, Math.min(least.get(name) ?? times, times));
    } else if (now && least.has(now[0][0])) now = times >= least.get(now[0][0]) ? [now[0], null] : null;
    return now;
  });
}

/** Return the slices of what computes, each in the row of its layer: [start, width, label, row]; row 0 is outside.
 *
 * What runs in each layer of a stack is drawn once for each: forward from the first layer on, then back.
 */
function layeredSlices(slices, layers, firsts, { labels, words }) {
  const rest = [];
  const blocks = [];
  slices.forEach((slice, at) => {
    if (!layers[at]) {
      rest.push([...slice, 0]);
      blocks.push(null);
      return;
    }
    const [[name, size], layer] = layers[at];
    if (blocks.at(-1)?.name === name) blocks.at(-1).slices.push([slice, layer]);
    else blocks.push({ name, size, slices: [[slice, layer]] });
  });
  const found = blocks.filter(Boolean).flatMap((block) => {
    const isForward = words[labels[block.slices[0][0][2]][4]] === "forward";
    let x = block.slices[0][0][0];
    return range(block.size).flatMap((at) => {
      const layer = isForward ? at : block.size - 1 - at;
      return block.slices.filter(([, own]) => own === null || own === layer).map(([[, width, label], own]) => {
        const start = x;
        x += own === null ? width / block.size : width;
        return [start, x - start, label, firsts.get(block.name) + layer];
      });
    });
  });
  return [...rest, ...found].sort((a, b) => a[0] - b[0]);
}

/** Return a picture with a row for each layer, in the colours that the row of what computes has; null without any. */
function layerPicture(lane, data, of) {
  const layers = layersOfSlices(slicesOf(lane), data, of);
  const stacks = new Map(layers.filter(Boolean).map(([stack]) => stack));
  if (!stacks.size) return null;
  const firsts = new Map();
  let rows = 1;
  for (const [name, size] of stacks) {
    firsts.set(name, rows);
    rows += size;
  }
  const high = Math.max(Math.min(Math.floor(420 / rows), 12), 2);
  const kinds = new Map();
  for (const path of lane.querySelectorAll("path[data-labels]")) {
    for (const label of path.dataset.labels.split(" ")) kinds.set(Number(label), path.getAttribute("class"));
  }
  const slices = layeredSlices(slicesOf(lane), layers, firsts, data);
  const paths = new Map();
  for (const [start, width, label, row] of slices) {
    const line = paths.get(kinds.get(label)) ?? [];
    line.push(`M${short(start)} ${(row + 0.5) * high}h${short(width)}`);
    paths.set(kinds.get(label), line);
  }
  const drawn = [...paths].map(([kind, line]) => svg("path", { class: kind, d: line.join(""), "stroke-width": high }));
  const size = { viewBox: `0 0 ${STEP} ${rows * high}`, preserveAspectRatio: "none", width: "100%", height: rows * high };
  const picture = svg("svg", { class: "lane layers", "data-row": "layers", ...size }, ...drawn);
  return Object.assign(picture, { slices, rows, stacks, rowHeight: high });
}

/** Return `decoder/layers_3` of a row of layers. */
function layerName(stacks, row) {
  let first = 1;
  for (const [name, count] of stacks) {
    if (row >= first && row < first + count) return name.includes("#") ? name.replace("#", row - first) : `${name} ${row - first}`;
    first += count;
  }
  return "outside of the layers";
}

/** Return the last of rows that begins at a place or before it; -1 for none. */
function lastAt(rows, x) {
  let [low, high] = [0, rows.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle][0] <= x) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

class TimeLine {
  constructor(box, data) {
    this.box = box;
    this.data = data;
    this.startLayers();
    this.lanes = [...box.querySelectorAll("svg.lane")];
    this.told = el("div", { class: "step-told", role: "status" });
    this.view = [0, STEP];
    this.lanes.forEach((lane) => this.listen(lane));
    this.brush = this.strip();
    const whole = el("button", { type: "button", click: () => this.show(0, STEP) }, "Whole step");
    const how = "Drag over the strip to look closer. On a row: arrow keys go from one operation to the next, + and - change what is shown.";
    box.prepend(el("div", { class: "tools" }, whole, el("p", { class: "quiet" }, how)), this.brush);
    box.append(this.told);
    this.show(0, STEP);
  }

  /** Draw the layers below the row of what computes. */
  startLayers() {
    const lane = this.box.querySelector("svg.lane");
    const picture = layerPicture(lane, this.data, target());
    if (!picture) return;
    this.stacks = picture.stacks;
    const said = [...picture.stacks].map(([name, count]) => `${count} of ${name}`).join(", ");
    const how = " a row for each, the first row is outside of them; what runs in all layers is spread over them evenly. Enter or a double click shows one layer.";
    lane.after(el("p", { class: "lane-name" }, el("b", {}, "layers"), ` ${said};${how}`), picture);
  }

  /** Let a row be pointed at, and walked through by keys. */
  listen(lane) {
    lane.slices ??= slicesOf(lane);
    lane.addEventListener("dblclick", () => this.showLayer(lane));
    const name = lane.dataset.row ?? "memory";
    const attributes = { tabindex: 0, role: "slider", "aria-label": `cursor on ${name}`, "aria-valuemin": 0, "aria-valuemax": STEP, "aria-valuenow": 0, "aria-valuetext": "0 s" };
    for (const [key, value] of Object.entries(attributes)) lane.setAttribute(key, value);
    lane.removeAttribute("aria-hidden");
    lane.append(svg("path", { class: "edges" }), svg("line", { class: "cursor", y1: 0, y2: lane.viewBox.baseVal.height, visibility: "hidden" }));
    const point = (event) => this.at(lane, this.place(lane, event));
    lane.addEventListener("pointermove", point);
    lane.addEventListener("pointerdown", point);
    lane.addEventListener("keydown", (event) => this.key(event, lane));
  }

  place(box, event, [from, to] = this.view) {
    const { left, width } = box.getBoundingClientRect();
    return from + Math.min(Math.max((event.clientX - left) / width, 0), 1) * (to - from);
  }

  key(event, lane) {
    const [from, to] = this.view;
    const x = this.x ?? from;
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    const zoom = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    if (event.key === "Home" || event.key === "Escape") this.show(0, STEP);
    else if (zoom) this.show(x - (x - from) * zoom, x + (to - x) * zoom);
    else if (event.key === "Enter") this.showLayer(lane);
    else if (lane.rowHeight && (event.key === "ArrowUp" || event.key === "ArrowDown")) this.walkLayers(lane, x, step);
    else if (step) this.walk(lane, x, step);
    else return;
    event.preventDefault();
  }

  /** Go to the next slice of a row, or of the memory to where it changes. */
  walk(lane, x, step) {
    const rows = lane.slices.length ? lane.slices : this.data.points;
    const at = lastAt(rows, x);
    const next = Math.min(Math.max(at + (at < 0 && step < 0 ? 0 : step), 0), rows.length - 1);
    this.reach(lane, rows[next][0]);
  }

  /** Put the cursor at a place, and show it. */
  reach(lane, place) {
    this.at(lane, place);
    const [from, to] = this.view;
    if (this.x < from || this.x > to) this.show(this.x - (to - from) / 2, this.x + (to - from) / 2);
  }

  /** Go to the same operation of the nearest other layer: a row up or down. */
  walkLayers(lane, x, step) {
    const here = lane.slices[Math.max(lastAt(lane.slices, x), 0)];
    const row = here[3] + (step > 0 ? -1 : 1);
    const near = lane.slices.filter((each) => each[3] === row && (each[2] === here[2] || !row || !here[3]));
    const next = near.sort((a, b) => Math.abs(a[0] - x) - Math.abs(b[0] - x))[0];
    if (next) this.reach(lane, next[0]);
  }

  /** Show what of the step the layer under the cursor takes at once. */
  showLayer(lane) {
    const at = lane.rowHeight ? lastAt(lane.slices, this.x ?? 0) : -1;
    if (at < 0) return;
    let [first, last] = [at, at];
    while (lane.slices[first - 1]?.[3] === lane.slices[at][3]) first -= 1;
    while (lane.slices[last + 1]?.[3] === lane.slices[at][3]) last += 1;
    this.show(lane.slices[first][0], lane.slices[last][0] + lane.slices[last][1]);
  }

  /** Return the strip of the whole step, on which a part of it is chosen. */
  strip() {
    const window_ = svg("rect", { class: "window", y: 0, height: 18 });
    const marks = [...this.lanes[0].querySelectorAll("path")].map((path) => path.cloneNode());
    const strip = svg("svg", { class: "brush", viewBox: `0 0 ${STEP} 18`, preserveAspectRatio: "none", width: "100%", height: 24, "aria-hidden": "true" }, ...marks, window_);
    let start = null;
    strip.addEventListener("pointerdown", (event) => {
      start = this.place(strip, event, [0, STEP]);
      strip.setPointerCapture(event.pointerId);
    });
    strip.addEventListener("pointermove", (event) => {
      if (start === null) return;
      const now = this.place(strip, event, [0, STEP]);
      if (Math.abs(now - start) > STEP / 500) this.show(Math.min(start, now), Math.max(start, now));
    });
    for (const name of ["pointerup", "pointercancel"]) strip.addEventListener(name, () => (start = null));
    return strip;
  }

  /** Show a part of the step in all rows. */
  show(from, to) {
    const wide = Math.min(Math.max(to - from, 20), STEP);
    const first = Math.min(Math.max(from, 0), STEP - wide);
    this.view = [first, first + wide];
    for (const lane of this.lanes) {
      const seen = lane.slices.slice(Math.max(lastAt(lane.slices, first), 0), lastAt(lane.slices, first + wide) + 1);
      const [top, high] = lane.rowHeight ? this.rowsOf(lane, seen) : [0, lane.viewBox.baseVal.height];
      lane.setAttribute("viewBox", `${first} ${top} ${wide} ${high}`);
      const deep = lane.rowHeight ?? high;
      const edges = seen.length > MOST_EDGES ? [] : seen.map(([start, , , row]) => `M${start} ${deep * (row ?? 0)}v${deep}`);
      lane.querySelector(".edges").setAttribute("d", edges.join(""));
    }
    const rect = this.brush.lastChild;
    rect.setAttribute("x", first);
    rect.setAttribute("width", wide);
    const texts = this.view.map((x) => `${x ? "~ " : ""}${secondsText((x / STEP) * this.data.end)}`);
    this.box.querySelectorAll(".ends span").forEach((end, at) => (end.textContent = texts[at]));
  }

  /** Show those rows of the layers alone that something runs in; return where they are. */
  rowsOf(lane, seen) {
    const rows = seen.map(([, , , row]) => row).filter(Boolean);
    const [first, most] = rows.length ? [Math.min(...rows), Math.max(...rows)] : [0, lane.rows - 1];
    const least = first === 1 ? 0 : first;
    const high = (most - least + 1) * lane.rowHeight;
    lane.setAttribute("height", Math.min(lane.rows * lane.rowHeight, 18 * (most - least + 1)));
    return [least * lane.rowHeight, high];
  }

  /** Put the cursor at a place of a row, and say what is there. */
  at(lane, x) {
    this.x = x;
    for (const each of this.box.querySelectorAll(".cursor")) {
      each.setAttribute("x1", x);
      each.setAttribute("x2", x);
      each.setAttribute("visibility", "visible");
    }
    const time = `~ ${secondsText((x / STEP) * this.data.end)}`;
    const slice = lane.slices[lastAt(lane.slices, x)];
    const running = slice && x <= slice[0] + slice[1] ? slice : null;
    const said = running ? this.sliceText(running) : lane.slices.length ? "nothing runs in this row" : "memory";
    lane.setAttribute("aria-valuenow", Math.round(x));
    lane.setAttribute("aria-valuetext", `${time}: ${said}`);
    this.told.replaceChildren(el("p", {}, el("b", {}, time), ` ${said}`), ...this.alive(x));
  }

  sliceText([, width, label, row]) {
    const [what, at, rule, array, phase, runs] = this.data.labels[label].map((word) => this.data.words[word]);
    if (row !== undefined) return `${layerName(this.stacks, row)}: ${[what, `~ ${secondsText((width / STEP) * this.data.end)}`, phase, known(at, "line"), array, known(rule, "rule")].filter(Boolean).join(" · ")}`;
    return [what, `~ ${secondsText((width / STEP) * this.data.end)}`, `${phase} ${runs}`, known(at, "line"), array, known(rule, "rule")].filter(Boolean).join(" · ");
  }

  /** Return what a device holds at a place: by part, and the largest values that the step made. */
  alive(x) {
    const { points, parts, lives, words } = this.data;
    if (!points.length) return [el("p", { class: "quiet" }, "What is alive: unknown.")];
    const [, ...held] = points[Math.max(lastAt(points, x), 0)];
    const all = held.reduce((sum, size) => sum + size, 0);
    const said = parts.map((part, at) => (held[at] ? `${part} ${binaryBytes(held[at])}` : "")).filter(Boolean);
    const found = lives.filter(([born, ends]) => born <= x && x < ends);
    const rows = found.slice(0, MOST_ALIVE).map(([, , size, part, word]) =>
      el("tr", {}, el("th", { scope: "row" }, words[word]), el("td", {}, parts[part]), el("td", { class: "number" }, binaryBytes(size)))
    );
    const more = found.length - rows.length;
    const title = `Alive: ~ ${binaryBytes(all)}; ${said.join(", ")}.`;
    const below = more > 0 ? [el("p", { class: "quiet" }, `and ${counted(more, "smaller value")} at least`)] : [];
    return [el("p", { class: "quiet" }, title), el("table", {}, el("tbody", {}, ...rows)), ...below];
  }
}

/** Let the rows of a graph be chosen, and light up the arrows of the one that is pointed at. */
function startGraph(graph) {
  const nodes = [...graph.querySelectorAll(".node")];
  const point = (at) => {
    graph.classList.toggle("pointed", at >= 0);
    for (const flow of graph.querySelectorAll(".flow")) {
      flow.classList.toggle("on", [flow.dataset.from, flow.dataset.to].includes(String(at)));
    }
  };
  nodes.forEach((node, at) => {
    node.setAttribute("role", "button");
    node.setAttribute("tabindex", at ? "-1" : "0");
    node.addEventListener("click", () => goTo({ line: node.classList.contains("chosen") ? "" : node.dataset.line }));
    for (const name of ["focus", "pointerenter"]) node.addEventListener(name, () => point(at));
    for (const name of ["blur", "pointerleave"]) node.addEventListener(name, () => point(-1));
  });
  graph.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      event.target.click();
    } else stepThrough(event, graph);
  });
}

/** Start the time line of a target when it is shown first. */
function startSteps() {
  document.querySelectorAll(".graph").forEach(startGraph);
  onTarget(() => {
    const box = document.querySelector(`#step .of-target[data-target="${here.at}"] .timeline`);
    if (box) box.timeLine ??= new TimeLine(box, target().step);
  });
}
