// The machine as it is: a flat torus, nodes, or a torus of three dimensions that the mouse turns.
// A device stands where the offsets of its indices on all mesh axes add up to.

const MOST_DEVICES = 16384;
const MOST_LINKS = 4096;
const YAW = -0.42;
const PITCH = 0.42;

/** Return where every device of a target stands, in mesh order; null where that is not known. */
function placesOf(of) {
  if (of.places !== undefined) return of.places;
  of.places = null;
  if (!of.machine) return null;
  const count = of.mesh.reduce((all, [, size]) => all * size, 1);
  const rank = of.machine.axes.length;
  const at = new Int32Array(count * rank);
  let stride = count;
  for (const [name, size] of of.mesh) {
    stride /= size;
    const route = of.machine.routes[name];
    for (let device = 0; device < count; device += 1) {
      const offset = route[Math.floor(device / stride) % size];
      for (let axis = 0; axis < rank; axis += 1) at[device * rank + axis] += offset[axis];
    }
  }
  of.places = { count, rank, at, ...drawnPlaces(of.machine, at, count, rank) };
  return of.places;
}

/** Return the point of each device in the picture, in steps of a chip: x to the right, y down. */
function drawnPlaces(machine, at, count, rank) {
  const points = new Float32Array(count * 3);
  const extents = machine.axes.map((axis) => axis[1]);
  const isTorus = machine.platform === "tpu";
  const solid = isTorus && extents[3] > 1;
  const across = isTorus ? Math.ceil(Math.sqrt(extents[0])) : Math.ceil(extents[0] / 16);
  const wide = !isTorus && extents[1] > 16 ? 12 : extents[1];
  for (let device = 0; device < count; device += 1) {
    const place = at.subarray(device * rank, (device + 1) * rank);
    const [column, row] = [place[0] % across, Math.floor(place[0] / across)];
    if (isTorus) {
      const cores = extents[4];
      points[device * 3] = place[2] * cores + place[4] * 0.8 + column * (extents[2] * cores + 2);
      points[device * 3 + 1] = place[1] + row * (extents[1] + 2);
      points[device * 3 + 2] = place[3];
    } else {
      points[device * 3] = (place[1] % wide) + column * (wide + 1.2);
      points[device * 3 + 1] = Math.floor(place[1] / wide) + row * (Math.ceil(extents[1] / wide) + 0.35);
    }
  }
  return { points, solid, isTorus, reach: isTorus && extents[4] > 1 ? extents[4] + 0.1 : 1.45 };
}

/** Return the devices of one group of a mesh axis, in its order: those that differ in it alone. */
function groupOf(of, axis, device) {
  let stride = 1;
  for (let at = of.mesh.length - 1; at >= 0; at -= 1) {
    const [name, size] = of.mesh[at];
    if (name === axis) {
      const first = device - (Math.floor(device / stride) % size) * stride;
      return Array.from({ length: size }, (_, index) => first + index * stride);
    }
    stride *= size;
  }
  return [device];
}

/** Return the indices of a device on all mesh axes: `data 2, model 5`. */
function meshPlace(of, device) {
  const said = [];
  let rest = device;
  for (const [name, size] of [...of.mesh].reverse()) {
    said.unshift(`${name} ${rest % size}`);
    rest = Math.floor(rest / size);
  }
  return said.join(", ");
}

function hostOf(of, places, device) {
  return of.machine.axes
    .map(([, , , , host], axis) => Math.floor(places.at[device * places.rank + axis] / host))
    .join(".");
}

/** A picture of the machine of a target in a box of the page. */
class Machine {
  constructor(box, of, { axis = null, held = null, told = null, heat = "" } = {}) {
    this.of = of;
    this.places = placesOf(of);
    this.box = box;
    this.told = told;
    this.axis = axis;
    this.held = held ? new Set(held) : null;
    this.heat = heat;
    this.device = 0;
    this.yaw = YAW;
    this.pitch = PITCH;
    this.choosePlane(this.places?.solid && this.places.count > MOST_LINKS ? 0 : -1);
    this.draw();
  }

  /** Choose which devices are drawn: those of a plane across z, or all by -1. */
  choosePlane(plane) {
    this.plane = plane;
    if (!this.places) return;
    const { count, rank, at } = this.places;
    const all = range(count);
    this.shown = plane < 0 ? all : all.filter((device) => at[device * rank + 3] === plane);
    this.isShown = new Uint8Array(count);
    for (const device of this.shown) this.isShown[device] = 1;
    this.boxes = null;
  }

  /** Say whether a torus of three dimensions is drawn as one. */
  get solid() {
    return this.places.solid && this.plane < 0;
  }

  get traffic() {
    return this.heat && this.places.isTorus ? trafficOf(this.of, this.heat) : null;
  }

  get isDrawn() {
    return this.places !== null && this.places.count <= MOST_DEVICES;
  }

  /** Draw everything anew. */
  draw() {
    if (!this.isDrawn) {
      this.box.replaceChildren(el("p", { class: "quiet" }, this.undrawn()));
      return;
    }
    this.project();
    const label = `${this.of.title}, mesh ${this.of.mesh.map(([name, size]) => `${name}=${size}`).join(" ")}`;
    const picture = svg(
      "svg",
      {
        viewBox: `0 0 ${this.width} ${this.height}`,
        class: this.solid ? "machine solid" : "machine",
        role: "img",
        tabindex: "0",
        "aria-label": label,
      },
      ...this.layers()
    );
    this.listen(picture);
    this.picture = picture;
    this.box.replaceChildren(picture);
  }

  undrawn() {
    if (this.places !== null) return `${counted(this.places.count, "device")} are too many to draw.`;
    return "No hardware is stated for this target, or it is too large: where its devices stand is not known.";
  }

  /** Work out where each point of the machine lies in the picture. */
  project() {
    const { count } = this.places;
    const { solid } = this;
    const [least, most] = extremes(this.shown.map((device) => this.point(device)));
    const middle = least.map((low, axis) => (low + most[axis]) / 2);
    this.width = Math.max(this.box.clientWidth, 260);
    const spans = least.map((low, axis) => most[axis] - low + 1.2);
    this.height = solid ? Math.min(520, Math.max(320, this.width * 0.6)) : 0;
    this.scale = solid ? this.fitting(spans) : Math.min(this.width / spans[0], this.plane < 0 ? 46 : 30);
    if (!solid) this.height = Math.ceil(spans[1] * this.scale) + 18;
    const [sy, cy, sp, cp] = [Math.sin(this.yaw), Math.cos(this.yaw), Math.sin(this.pitch), Math.cos(this.pitch)];
    this.at = (x, y, z) => {
      const [dx, dy, dz] = [x - middle[0], y - middle[1], z - middle[2]];
      if (!solid) return [this.width / 2 + dx * this.scale, this.height / 2 + 7 + dy * this.scale];
      const across = dx * cy - dy * sy;
      const deep = dx * sy + dy * cy;
      return [this.width / 2 + across * this.scale, this.height / 2 + (deep * sp - dz * cp) * this.scale];
    };
    this.nearness = (x, y, z) => (x - middle[0]) * sy * cp + (y - middle[1]) * cy * cp + (z - middle[2]) * sp;
    this.far = Math.hypot(...spans) / 2;
    this.flat = new Float32Array(count * 2);
    for (const device of this.shown) this.flat.set(this.at(...this.point(device)), device * 2);
  }

  /** Return the scale at which a box has room as it stands at first; turning it keeps the scale. */
  fitting([x, y, z]) {
    const [sy, cy, sp, cp] = [Math.sin(YAW), Math.cos(YAW), Math.sin(PITCH), Math.cos(PITCH)].map(Math.abs);
    const [across, down] = [x * cy + y * sy, (x * sy + y * cy) * sp + z * cp];
    return Math.min(this.width / across, this.height / down, 60);
  }

  point(device) {
    return this.places.points.subarray(device * 3, device * 3 + 3);
  }

  /** Return what is drawn, from the back to the front. */
  layers() {
    const group = this.axis ? groupOf(this.of, this.axis, this.device) : [];
    const own = new Set(group);
    const held = this.held ? this.shown.filter((device) => this.held.has(device)) : [];
    const others = this.shown.filter((device) => !own.has(device) && !(this.held && this.held.has(device)));
    const colour = this.axis ? `stroke-${colourOf(this.axis)}` : "";
    const fill = this.axis ? `fill-${colourOf(this.axis)}` : "";
    const rings = this.axis && !this.traffic;
    return [
      svg("path", { class: "hosts", d: this.hosts() }),
      ...this.links().map((d, level) => svg("path", { class: level ? `heat-${level}` : "links", d })),
      svg("path", { class: `rings ${colour}`, d: rings ? this.rings(group) : "" }),
      ...this.byDepth(others).map((devices, at) => svg("path", { class: `chips far-${at}`, d: this.chips(devices) })),
      ...this.heats().map((devices, level) => svg("path", { class: `chips heat-${level}`, d: this.chips(devices) })),
      svg("path", { class: "chips held", d: this.chips(held) }),
      svg("path", { class: `ring ${colour}`, d: rings ? this.ring(group) : "" }),
      svg("path", { class: `chips ${fill}`, d: this.chips(this.held ? [] : group) }),
      svg("path", { class: "chips picked", d: this.axis ? this.chips([this.device]) : "" }),
      ...this.names(),
      ...(this.held ? [] : this.numbers(group)),
    ];
  }

  /** Return devices in four groups, the farthest first, which is drawn palest; flat ones are one. */
  byDepth(devices) {
    if (!this.solid) return [[], [], devices];
    const groups = [[], [], [], []];
    for (const device of devices) {
      const share = (this.nearness(...this.point(device)) / this.far + 1) / 2;
      groups[Math.min(Math.max(Math.floor(share * 4.6 - 0.3), 0), 3)].push(device);
    }
    return groups;
  }

  radius() {
    const most = this.solid ? 0.13 : this.traffic ? 0.22 : 0.33;
    return Math.max(Math.min(this.scale * most, 14), 1.6);
  }

  chips(devices) {
    const r = short(this.radius());
    const round = this.solid && this.shown.length <= MOST_LINKS;
    return devices
      .filter((device) => this.isShown[device])
      .map((device) => {
        const [x, y] = [short(this.flat[device * 2]), short(this.flat[device * 2 + 1])];
        if (round) return `M${short(x - r)} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
        return `M${short(x - r)} ${short(y - r)}h${2 * r}v${2 * r}h${-2 * r}z`;
      })
      .join("");
  }

  /** Return the way from one device to another: straight to a neighbour, bent past others. */
  way(from, to) {
    if (!this.isShown[from] || !this.isShown[to]) return "";
    const [x, y, u, v] = [...this.flat.subarray(from * 2, from * 2 + 2), ...this.flat.subarray(to * 2, to * 2 + 2)];
    const [a, b] = [this.point(from), this.point(to)];
    const far = Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
    const start = `M${short(x)} ${short(y)}`;
    if (far < this.places.reach) return `${start}L${short(u)} ${short(v)}`;
    const bend = 0.16;
    const [cx, cy] = [(x + u) / 2 + (v - y) * bend, (y + v) / 2 - (u - x) * bend];
    return `${start}Q${short(cx)} ${short(cy)} ${short(u)} ${short(v)}`;
  }

  ring(group) {
    const ends = group.length > 2 ? group : group.slice(0, -1);
    return ends.map((device, at) => this.way(device, group[(at + 1) % group.length])).join("");
  }

  /** Return the rings of all other groups of the axis. */
  rings(own) {
    const size = own.length;
    if (size < 2 || this.shown.length > MOST_LINKS) return "";
    const known = new Set(own);
    const found = [];
    for (const device of this.shown) {
      if (known.has(device)) continue;
      const group = groupOf(this.of, this.axis, device);
      group.forEach((each) => known.add(each));
      found.push(this.ring(group));
    }
    return found.join("");
  }

  /** Return the links of the torus, where there are not too many: those without traffic, then by heat. */
  links() {
    const found = range(LEVELS + 1).map(() => []);
    const { rank, at, isTorus } = this.places;
    if (!isTorus || this.shown.length > MOST_LINKS) return [""];
    const ends = this.of.machine.axes.map(([, extent, , wraps]) => [extent, wraps && extent > 2]);
    const by = new Map(this.shown.map((device) => [at.subarray(device * rank, (device + 1) * rank).join(), device]));
    const { traffic } = this;
    for (const device of this.shown) {
      const place = [...at.subarray(device * rank, (device + 1) * rank)];
      if (place[4]) continue;
      for (const dim of [1, 2, 3]) {
        const [extent, wraps] = ends[dim];
        const here = place[dim];
        const isLast = here === extent - 1;
        if (isLast && !(wraps && traffic)) continue;
        place[dim] = isLast ? 0 : here + 1;
        const next = by.get(place.join());
        place[dim] = here;
        const level = traffic ? traffic.level(traffic.above(traffic.numberOf(place), dim)) : 0;
        if (dim === 3 && !this.solid) found[level].push(this.tick(device));
        else if (next !== undefined) found[level].push(isLast ? this.stubs(device, next, extent) : this.way(device, next));
      }
    }
    return found.map((paths) => paths.join(""));
  }

  /** Return a link to the next plane, at a corner of its chip. */
  tick(device) {
    const [x, y, r] = [this.flat[device * 2], this.flat[device * 2 + 1], this.radius()];
    const far = this.scale * 0.3;
    return `M${short(x + r)} ${short(y - r)}l${short(far)} ${short(-far)}`;
  }

  /** Return a link around the torus: what is seen of it at either end. */
  stubs(last, first, extent) {
    const [x, y, u, v] = [...this.flat.subarray(last * 2, last * 2 + 2), ...this.flat.subarray(first * 2, first * 2 + 2)];
    const [right, down] = [((x - u) / (extent - 1)) * 0.45, ((y - v) / (extent - 1)) * 0.45];
    return `M${short(x)} ${short(y)}l${short(right)} ${short(down)}M${short(u)} ${short(v)}l${short(-right)} ${short(-down)}`;
  }

  /** Return the devices by the heat of their links, where too many links are there to be drawn. */
  heats() {
    const found = range(LEVELS + 1).map(() => []);
    const { traffic } = this;
    if (!traffic || this.shown.length <= MOST_LINKS) return [];
    for (const device of this.shown) found[traffic.level(Math.max(...traffic.ofDevice(device)))].push(device);
    return found;
  }

  /** Return the borders of hosts: of boxes around their devices. */
  hosts() {
    this.boxes ??= this.hostBoxes();
    return this.boxes.map((box) => this.hostBox(box)).join("");
  }

  hostBoxes() {
    const boxes = new Map();
    for (const device of this.shown) {
      const host = hostOf(this.of, this.places, device);
      const point = this.point(device);
      const box = boxes.get(host);
      if (!box) boxes.set(host, [[...point], [...point]]);
      else {
        point.forEach((value, axis) => {
          box[0][axis] = Math.min(box[0][axis], value);
          box[1][axis] = Math.max(box[1][axis], value);
        });
      }
    }
    return [...boxes.values()];
  }

  hostBox([least, most]) {
    const pad = this.solid ? 0.3 : 0.44;
    const [x, y, u, v] = [least[0] - pad, least[1] - pad, most[0] + pad, most[1] + pad];
    const corners = (z) => [[x, y], [u, y], [u, v], [x, v]].map((corner) => this.at(...corner, z).map(short));
    const face = (z) => `M${corners(z).map((corner) => corner.join(" ")).join("L")}z`;
    if (!this.solid || least[2] === most[2]) return face(least[2]);
    const [low, high] = [corners(least[2]), corners(most[2])];
    const edges = low.map((corner, at) => `M${corner.join(" ")}L${high[at].join(" ")}`);
    return face(least[2]) + face(most[2]) + edges.join("");
  }

  /** Return the names of slices or nodes, where there is more than one. */
  names() {
    const [word, extent] = this.of.machine.axes[0];
    if (extent < 2 || extent > 64) return [];
    const corners = new Map();
    for (const device of this.shown) {
      const name = this.places.at[device * this.places.rank];
      const [x, y] = [this.flat[device * 2], this.flat[device * 2 + 1]];
      const known = corners.get(name) ?? [Infinity, Infinity];
      corners.set(name, [Math.min(known[0], x), Math.min(known[1], y)]);
    }
    const aside = this.places.isTorus ? [0, -this.radius() - 9] : [-this.radius() - 8, 4];
    return [...corners].map(([name, [x, y]]) =>
      svg("text", { x: x + aside[0], y: y + aside[1], class: this.places.isTorus ? "name" : "name end" }, `${word} ${name}`)
    );
  }

  /** Return the index of each device on the axis, where a chip has room for it. */
  numbers(group) {
    if (this.solid || this.radius() < 7) return [];
    const seen = [...group.entries()].filter(([, device]) => this.isShown[device]);
    return seen.map(([index, device]) =>
      svg("text", { class: "number", x: this.flat[device * 2], y: this.flat[device * 2 + 1] + 4 }, String(index))
    );
  }

  listen(picture) {
    let from = null;
    picture.addEventListener("pointerdown", (event) => {
      from = [event.clientX, event.clientY, this.yaw, this.pitch];
      if (this.solid) picture.setPointerCapture(event.pointerId);
    });
    picture.addEventListener("pointermove", (event) => {
      if (from && this.solid) {
        const [x, y] = [event.clientX - from[0], event.clientY - from[1]];
        this.turn(from[2] + x * 0.01, from[3] + y * 0.01);
      }
    });
    picture.addEventListener("pointerup", (event) => {
      const moved = from && Math.hypot(event.clientX - from[0], event.clientY - from[1]) > 4;
      if (from && !moved) this.pick(event);
      from = null;
    });
    picture.addEventListener("pointercancel", () => (from = null));
    picture.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[event.key];
      if (!step || !this.solid) return;
      event.preventDefault();
      this.turn(this.yaw + step[0], this.pitch + step[1]);
    });
  }

  /** Turn a torus of three dimensions. */
  turn(yaw, pitch) {
    this.yaw = yaw;
    this.pitch = Math.min(Math.max(pitch, -1.5), 1.5);
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.project();
      this.picture.replaceChildren(...this.layers());
    });
  }

  /** Choose the device that lies nearest to a click. */
  pick(event) {
    const box = this.picture.getBoundingClientRect();
    const [x, y] = [((event.clientX - box.left) * this.width) / box.width, ((event.clientY - box.top) * this.height) / box.height];
    let [best, least] = [0, Infinity];
    for (const device of this.shown) {
      const far = Math.hypot(this.flat[device * 2] - x, this.flat[device * 2 + 1] - y);
      if (far < least) [best, least] = [device, far];
    }
    if (least < Math.max(this.scale, 12)) this.show(this.axis, best);
  }

  /** Show the group of a mesh axis in which a device is. */
  show(axis, device) {
    this.axis = axis;
    this.device = device;
    if (!this.isDrawn) return;
    if (!this.isShown[device]) {
      this.choosePlane(this.places.at[device * this.places.rank + 3]);
      this.project();
    }
    this.picture.replaceChildren(...this.layers());
    if (this.told) this.told(this);
  }

  /** Show the traffic of a step, and a plane or all of them. */
  look(heat, plane) {
    this.heat = heat;
    if (plane !== this.plane) this.choosePlane(plane);
    if (this.isDrawn) this.draw();
    if (this.told) this.told(this);
  }

  /** Light up the devices that hold something. */
  hold(devices) {
    this.held = new Set(devices);
    if (this.isDrawn) this.picture.replaceChildren(...this.layers());
  }

  /** Return where a device stands, in words. */
  placeText(device) {
    const { at, rank } = this.places;
    const machine = this.of.machine.axes
      .map(([name, extent], axis) => (extent > 1 ? `${name} ${at[device * rank + axis]}` : ""))
      .filter(Boolean);
    return `device ${device}: ${meshPlace(this.of, device)}; ${machine.join(", ")}`;
  }
}

/** Return a number with one digit behind the point. */
function short(value) {
  return Math.round(value * 10) / 10;
}

function extremes(points) {
  const [least, most] = [[Infinity, Infinity, Infinity], [-Infinity, -Infinity, -Infinity]];
  for (const point of points) {
    for (const axis of [0, 1, 2]) {
      least[axis] = Math.min(least[axis], point[axis]);
      most[axis] = Math.max(most[axis], point[axis]);
    }
  }
  return [least, most];
}

// the section of the page

let machine = null;
// Over which mesh axes the reader wants to see what is sent: `all`, `a+b`, or none by "".
let heatWanted = "all";

function showMachine() {
  const of = target();
  const axes = of.mesh.filter(([, size]) => size > 1).map(([name]) => name);
  const axis = axes.includes(machine?.axis) ? machine.axis : axes.at(-1) ?? null;
  machine = new Machine(document.getElementById("machine-picture"), of, { axis, told: tellMachine, heat: heatOf(of) });
  const choices = axes.map((name) => {
    const input = el("input", { type: "radio", name: "axis", value: name, checked: name === axis, change: () => machine.show(name, machine.device) });
    return el("label", {}, input, swatchOf([name]), `${name} ${of.mesh.find((each) => each[0] === name)[1]} `, el("span", { class: "quiet" }, of.machine?.speeds[name] ?? ""));
  });
  document.getElementById("machine-axes").replaceChildren(...choices);
  const number = document.getElementById("device");
  number.max = String((machine.places?.count ?? 1) - 1);
  number.value = "0";
  document.getElementById("machine-tools").hidden = !machine.isDrawn;
  const heat = document.getElementById("heat");
  heat.replaceChildren(...sentChoices(of).map((name) => el("option", { value: name }, { "": "no traffic", all: "all mesh axes" }[name] ?? name)));
  heat.value = machine.heat;
  heat.parentElement.hidden = !of.sent.length;
  const plane = document.getElementById("plane");
  const isSolid = machine.isDrawn && machine.places.solid;
  plane.max = String(isSolid ? of.machine.axes[3][1] - 1 : 0);
  plane.parentElement.hidden = !isSolid;
  if (machine.isDrawn) tellMachine(machine);
  else document.getElementById("machine-told").textContent = "";
}

/** Return over which mesh axes a step sends something. */
function sentChoices(of) {
  return ["", "all", ...new Set(of.sent.map(([axes]) => joinedAxes(axes)))];
}

function heatOf(of) {
  if (!of.sent.length || !of.machine) return "";
  return sentChoices(of).includes(heatWanted) ? heatWanted : "all";
}

function tellMachine(shown) {
  const { device, axis, of, plane } = shown;
  document.getElementById("device").value = String(device);
  document.getElementById("plane").value = String(plane);
  document.getElementById("plane-text").textContent = plane < 0 ? "all" : `z ${plane}`;
  document.getElementById("turn").hidden = !shown.solid;
  const group = axis ? groupOf(of, axis, device) : [];
  const ring = axis ? `; its group of ${axis}: ${devicesText(group)}` : "";
  const { traffic } = shown;
  const sums = traffic ? traffic.ofDevice(device).map((bytes, at) => (traffic.extents[at + 1] > 1 ? `${"xyz"[at]} ~ ${binaryBytes(Math.round(bytes))}` : "")) : [];
  const links = traffic ? `; its links: ${sums.filter(Boolean).join(", ")}` : "";
  document.getElementById("machine-told").textContent = `${shown.placeText(device)}${links}${ring}`;
  document.getElementById("heat-keys").replaceChildren(...(shown.heat ? heatKeys(of, shown.heat) : []));
}

function startMachine() {
  onTarget(showMachine);
  document.getElementById("device").addEventListener("input", (event) => {
    const device = Number(event.target.value);
    if (Number.isInteger(device) && device >= 0 && device < machine.places.count) machine.show(machine.axis, device);
  });
  document.getElementById("heat").addEventListener("change", (event) => {
    heatWanted = event.target.value;
    machine.look(heatWanted, machine.plane);
  });
  document.getElementById("plane").addEventListener("input", (event) => machine.look(machine.heat, Number(event.target.value)));
  for (const button of document.querySelectorAll("[data-turn]")) {
    const [yaw, pitch] = button.dataset.turn.split(" ").map(Number);
    button.addEventListener("click", () => machine.turn(machine.yaw + yaw, machine.pitch + pitch));
  }
  const box = document.getElementById("machine-picture");
  let width = box.clientWidth;
  new ResizeObserver(() => {
    if (box.clientWidth === width || !machine) return;
    width = box.clientWidth;
    requestAnimationFrame(() => machine.draw());
  }).observe(box);
}
