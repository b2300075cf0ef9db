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

  /** Let a row be pointed at, and walked through by keys. */
  listen(lane) {
    lane.slices = slicesOf(lane);
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
    else if (step) this.walk(lane, x, step);
    else return;
    event.preventDefault();
  }

  /** Go to the next slice of a row, or of the memory to where it changes. */
  walk(lane, x, step) {
    const rows = lane.slices.length ? lane.slices : this.data.points;
    const at = lastAt(rows, x);
    const next = Math.min(Math.max(at + (at < 0 && step < 0 ? 0 : step), 0), rows.length - 1);
    this.at(lane, rows[next][0]);
    const [from, to] = this.view;
    if (this.x < from || this.x > to) this.show(this.x - (to - from) / 2, this.x + (to - from) / 2);
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
      const high = lane.viewBox.baseVal.height;
      lane.setAttribute("viewBox", `${first} 0 ${wide} ${high}`);
      const seen = lane.slices.slice(Math.max(lastAt(lane.slices, first), 0), lastAt(lane.slices, first + wide) + 1);
      const edges = seen.length > MOST_EDGES ? [] : seen.map(([start]) => `M${start} 0v${high}`);
      lane.querySelector(".edges").setAttribute("d", edges.join(""));
    }
    const rect = this.brush.lastChild;
    rect.setAttribute("x", first);
    rect.setAttribute("width", wide);
    const texts = this.view.map((x) => `${x ? "~ " : ""}${secondsText((x / STEP) * this.data.end)}`);
    this.box.querySelectorAll(".ends span").forEach((end, at) => (end.textContent = texts[at]));
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

  sliceText([, width, label]) {
    const [what, at, rule, array, phase, runs] = this.data.labels[label].map((word) => this.data.words[word]);
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

function startSteps() {
  document.querySelectorAll(".graph").forEach(startGraph);
  for (const box of document.querySelectorAll(".timeline")) {
    const data = DATA.targets[box.closest(".of-target").dataset.target].step;
    box.timeLine = new TimeLine(box, data);
  }
}
