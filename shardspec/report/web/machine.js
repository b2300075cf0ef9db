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
  constructor(box, of, { axis = null, held = null, told = null } = {}) {
    this.of = of;
    this.places = placesOf(of);
    this.box = box;
    this.told = told;
    this.axis = axis;
    this.held = held ? new Set(held) : null;
    this.device = 0;
    this.yaw = YAW;
    this.pitch = PITCH;
    this.draw();
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
        class: this.places.solid ? "machine solid" : "machine",
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
    const { points, count, solid } = this.places;
    const [least, most] = extremes(points, count);
    const middle = least.map((low, axis) => (low + most[axis]) / 2);
    this.width = Math.max(this.box.clientWidth, 260);
    const spans = least.map((low, axis) => most[axis] - low + 1.2);
    this.height = solid ? Math.min(520, Math.max(320, this.width * 0.6)) : 0;
    this.scale = solid ? this.fitting(spans) : Math.min(this.width / spans[0], 46);
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
    for (let device = 0; device < count; device += 1) this.flat.set(this.at(...this.point(device)), device * 2);
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
    const rest = Array.from({ length: this.places.count }, (_, device) => device);
    const own = new Set(group);
    const held = this.held ? rest.filter((device) => this.held.has(device)) : [];
    const others = rest.filter((device) => !own.has(device) && !(this.held && this.held.has(device)));
    const colour = this.axis ? `stroke-${colourOf(this.axis)}` : "";
    const fill = this.axis ? `fill-${colourOf(this.axis)}` : "";
    return [
      svg("path", { class: "hosts", d: this.hosts() }),
      svg("path", { class: "links", d: this.links() }),
      svg("path", { class: `rings ${colour}`, d: this.axis ? this.rings(group) : "" }),
      ...this.byDepth(others).map((devices, at) => svg("path", { class: `chips far-${at}`, d: this.chips(devices) })),
      svg("path", { class: "chips held", d: this.chips(held) }),
      svg("path", { class: `ring ${colour}`, d: this.axis ? this.ring(group) : "" }),
      svg("path", { class: `chips ${fill}`, d: this.chips(this.held ? [] : group) }),
      svg("path", { class: "chips picked", d: this.axis ? this.chips([this.device]) : "" }),
      ...this.names(),
      ...(this.held ? [] : this.numbers(group)),
    ];
  }

  /** Return devices in four groups, the farthest first, which is drawn palest; flat ones are one. */
  byDepth(devices) {
    if (!this.places.solid) return [[], [], devices];
    const groups = [[], [], [], []];
    for (const device of devices) {
      const share = (this.nearness(...this.point(device)) / this.far + 1) / 2;
      groups[Math.min(Math.max(Math.floor(share * 4.6 - 0.3), 0), 3)].push(device);
    }
    return groups;
  }

  radius() {
    const most = this.places.solid ? 0.13 : 0.33;
    return Math.max(Math.min(this.scale * most, 14), 1.6);
  }

  chips(devices) {
    const r = short(this.radius());
    const round = this.places.solid && this.places.count <= MOST_LINKS;
    return devices
      .map((device) => {
        const [x, y] = [short(this.flat[device * 2]), short(this.flat[device * 2 + 1])];
        if (round) return `M${short(x - r)} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
        return `M${short(x - r)} ${short(y - r)}h${2 * r}v${2 * r}h${-2 * r}z`;
      })
      .join("");
  }

  /** Return the way from one device to another: straight to a neighbour, bent past others. */
  way(from, to) {
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
    if (size < 2 || this.places.count > MOST_LINKS) return "";
    const known = new Set(own);
    const found = [];
    for (let device = 0; device < this.places.count; device += 1) {
      if (known.has(device)) continue;
      const group = groupOf(this.of, this.axis, device);
      group.forEach((each) => known.add(each));
      found.push(this.ring(group));
    }
    return found.join("");
  }

  /** Return the links of the torus between neighbours, where there are not too many. */
  links() {
    const { count, rank, at, isTorus } = this.places;
    if (!isTorus || count > MOST_LINKS) return "";
    const by = new Map();
    for (let device = 0; device < count; device += 1) by.set(at.subarray(device * rank, (device + 1) * rank).join(), device);
    const found = [];
    for (let device = 0; device < count; device += 1) {
      const place = [...at.subarray(device * rank, (device + 1) * rank)];
      if (place[4]) continue;
      for (const axis of [1, 2, 3]) {
        place[axis] += 1;
        const next = by.get(place.join());
        place[axis] -= 1;
        if (next !== undefined) found.push(this.way(device, next));
      }
    }
    return found.join("");
  }

  /** Return the borders of hosts: of boxes around their devices. */
  hosts() {
    this.boxes ??= this.hostBoxes();
    return this.boxes.map((box) => this.hostBox(box)).join("");
  }

  hostBoxes() {
    const boxes = new Map();
    for (let device = 0; device < this.places.count; device += 1) {
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
    const pad = this.places.solid ? 0.3 : 0.44;
    const [x, y, u, v] = [least[0] - pad, least[1] - pad, most[0] + pad, most[1] + pad];
    const corners = (z) => [[x, y], [u, y], [u, v], [x, v]].map((corner) => this.at(...corner, z).map(short));
    const face = (z) => `M${corners(z).map((corner) => corner.join(" ")).join("L")}z`;
    if (least[2] === most[2]) return face(least[2]);
    const [low, high] = [corners(least[2]), corners(most[2])];
    const edges = low.map((corner, at) => `M${corner.join(" ")}L${high[at].join(" ")}`);
    return face(least[2]) + face(most[2]) + edges.join("");
  }

  /** Return the names of slices or nodes, where there is more than one. */
  names() {
    const [word, extent] = this.of.machine.axes[0];
    if (extent < 2 || extent > 64) return [];
    const corners = new Map();
    for (let device = 0; device < this.places.count; device += 1) {
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
    if (this.places.solid || this.radius() < 7) return [];
    return group.map((device, index) =>
      svg("text", { class: "number", x: this.flat[device * 2], y: this.flat[device * 2 + 1] + 4 }, String(index))
    );
  }

  listen(picture) {
    let from = null;
    picture.addEventListener("pointerdown", (event) => {
      from = [event.clientX, event.clientY, this.yaw, this.pitch];
      if (this.places.solid) picture.setPointerCapture(event.pointerId);
    });
    picture.addEventListener("pointermove", (event) => {
      if (from && this.places.solid) {
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
      if (!step || !this.places.solid) return;
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
    for (let device = 0; device < this.places.count; device += 1) {
      const far = Math.hypot(this.flat[device * 2] - x, this.flat[device * 2 + 1] - y);
      if (far < least) [best, least] = [device, far];
    }
    if (least < Math.max(this.scale, 12)) this.show(this.axis, best);
  }

  /** Show the group of a mesh axis in which a device is. */
  show(axis, device) {
    this.axis = axis;
    this.device = device;
    if (this.isDrawn) this.picture.replaceChildren(...this.layers());
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

function extremes(points, count) {
  const [least, most] = [[Infinity, Infinity, Infinity], [-Infinity, -Infinity, -Infinity]];
  for (let at = 0; at < count * 3; at += 1) {
    least[at % 3] = Math.min(least[at % 3], points[at]);
    most[at % 3] = Math.max(most[at % 3], points[at]);
  }
  return [least, most];
}

// the section of the page

let machine = null;

function showMachine() {
  const of = target();
  const axes = of.mesh.filter(([, size]) => size > 1).map(([name]) => name);
  const axis = axes.includes(machine?.axis) ? machine.axis : axes.at(-1) ?? null;
  machine = new Machine(document.getElementById("machine-picture"), of, { axis, told: tellMachine });
  const choices = axes.map((name) => {
    const input = el("input", { type: "radio", name: "axis", value: name, checked: name === axis, change: () => machine.show(name, machine.device) });
    return el("label", {}, input, swatchOf([name]), `${name} ${of.mesh.find((each) => each[0] === name)[1]} `, el("span", { class: "quiet" }, of.machine?.speeds[name] ?? ""));
  });
  document.getElementById("machine-axes").replaceChildren(...choices);
  const number = document.getElementById("device");
  number.max = String((machine.places?.count ?? 1) - 1);
  number.value = "0";
  document.getElementById("machine-tools").hidden = !machine.isDrawn;
  document.getElementById("turn").hidden = !machine.isDrawn || !machine.places.solid;
  if (machine.isDrawn) tellMachine(machine);
  else document.getElementById("machine-told").textContent = "";
}

function tellMachine(shown) {
  document.getElementById("device").value = String(shown.device);
  const group = shown.axis ? groupOf(shown.of, shown.axis, shown.device) : [];
  const ring = shown.axis ? `; its group of ${shown.axis}: ${devicesText(group)}` : "";
  document.getElementById("machine-told").textContent = `${shown.placeText(shown.device)}${ring}`;
}

function startMachine() {
  onTarget(showMachine);
  document.getElementById("device").addEventListener("input", (event) => {
    const device = Number(event.target.value);
    if (Number.isInteger(device) && device >= 0 && device < machine.places.count) machine.show(machine.axis, device);
  });
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
