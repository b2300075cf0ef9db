// What crosses each link of a torus in a step: bytes one way, of the busier way.
//
// The ways are those of the predicted time (`topology/walk.py`). A ring goes both ways through the chips in
// the order of its mesh axes; where these are whole dimensions of the torus, a ring goes along each of them.
// A permute goes to the next device alone. Of what every device sends to every other, each gets a part.
// A way goes along x, then y, then z, each time around the shorter side.

const LEVELS = 5;

/** Return the devices of each group of mesh axes, in the order of these axes. */
function groupsOf(of, axes) {
  const strides = new Map();
  let stride = 1;
  for (const [name, size] of [...of.mesh].reverse()) {
    strides.set(name, [stride, size]);
    stride *= size;
  }
  const spread = (names) => names.reduce((all, name) => {
    const [by, size] = strides.get(name);
    return all.flatMap((first) => range(size).map((index) => first + index * by));
  }, [0]);
  const offsets = spread(axes);
  return spread([...strides.keys()].filter((name) => !axes.includes(name))).map((first) => offsets.map((offset) => first + offset));
}

/** The bytes on the links of a machine; a link is known by its lower chip, its dimension and its way. */
class Traffic {
  constructor(of) {
    this.of = of;
    this.places = placesOf(of);
    this.extents = of.machine.axes.slice(0, 4).map((axis) => axis[1]);
    this.wraps = of.machine.axes.slice(0, 4).map((axis) => axis[3]);
    this.chips = this.extents.reduce((all, extent) => all * extent, 1);
    this.bytes = new Float64Array(this.chips * 6);
  }

  /** Return the chip of a device, and its slice, x, y and z. */
  chipOf(device) {
    const place = this.places.at.subarray(device * this.places.rank, device * this.places.rank + 4);
    return { chip: this.numberOf(place), place };
  }

  numberOf([slice, x, y, z]) {
    const [, wide, deep, high] = this.extents;
    return ((slice * wide + x) * deep + y) * high + z;
  }

  /** Count what a step sends over some mesh axes. */
  add([axes, way, sent]) {
    const groups = groupsOf(this.of, axes);
    const ways = groups[0].length;
    const carried = way === "shift" || ways < 2 ? sent : (sent * ways) / (ways - 1);
    for (const group of groups) {
      const chips = group.map((device) => this.chipOf(device));
      if (way === "shift") chips.forEach((from, at) => this.go(from, chips[(at + 1) % ways], carried));
      else this.addGroup(chips, way, carried);
    }
  }

  addGroup(devices, way, carried) {
    const slices = new Map();
    for (const each of devices) {
      const own = slices.get(each.place[0]) ?? new Map();
      own.set(each.chip, each);
      slices.set(each.place[0], own);
    }
    const inside = devices.length / slices.size;
    for (const own of slices.values()) {
      const ring = [...own.values()];
      if (ring.length < 2) continue;
      if (way === "ring") this.addRing(ring, (carried * (ring.length - 1)) / ring.length);
      else this.addPairs(ring, (carried * inside) / ring.length ** 2);
    }
  }

  /** Count what each chip of a group sends around. */
  addRing(ring, sent) {
    const runs = this.runsOf(ring);
    if (runs.every(({ dim, values }) => this.isWhole(dim, values))) {
      const share = sent / runs.reduce((sum, { stride }) => sum + 1 / stride, 0);
      for (const { dim, values, stride } of runs) {
        for (const first of ring.filter(({ place }) => place[dim] === values[0])) {
          const place = [...first.place];
          for (place[dim] = 0; place[dim] < this.extents[dim]; place[dim] += 1) {
            for (const way of [0, 1]) this.bytes[this.link(place, dim, way)] += share / stride / 2;
          }
        }
      }
      return;
    }
    ring.forEach((from, at) => {
      const to = ring[(at + 1) % ring.length];
      this.go(from, to, sent / 2);
      this.go(to, from, sent / 2);
    });
  }

  /** Count what each chip of a group sends to each other one, a dimension after the other. */
  addPairs(group, each) {
    for (const { dim, values } of this.runsOf(group)) {
      const between = (each * group.length) / values.length;
      for (const first of group.filter(({ place }) => place[dim] === values[0])) {
        for (const from of values) {
          for (const to of values) this.goAlong([...first.place], dim, from, to, between);
        }
      }
    }
  }

  /** Return the dimensions over which chips lie, with their places on them and how far these are apart. */
  runsOf(chips) {
    return [1, 2, 3].map((dim) => {
      const values = [...new Set(chips.map(({ place }) => place[dim]))].sort((a, b) => a - b);
      return { dim, values, stride: values[1] - values[0] };
    }).filter(({ values }) => values.length > 1);
  }

  /** Say whether places go all the way around a dimension at one distance. */
  isWhole(dim, values) {
    const stride = values[1] - values[0];
    const isEven = values.every((value, at) => value === values[0] + at * stride);
    return this.wraps[dim] && isEven && values.length > 2 && values.length * stride === this.extents[dim];
  }

  go(from, to, bytes) {
    if (from.place[0] !== to.place[0]) return;
    const place = [...from.place];
    for (const dim of [1, 2, 3]) this.goAlong(place, dim, place[dim], to.place[dim], bytes);
  }

  goAlong(place, dim, from, to, bytes) {
    const extent = this.extents[dim];
    const distance = Math.abs(to - from);
    const isAround = this.wraps[dim] && 2 * distance > extent;
    const isUp = (this.wraps[dim] && 2 * distance === extent) || to > from !== isAround;
    place[dim] = from;
    for (let hop = isAround ? extent - distance : distance; hop > 0; hop -= 1) {
      if (!isUp) place[dim] = (place[dim] + extent - 1) % extent;
      this.bytes[this.link(place, dim, isUp ? 0 : 1)] += bytes;
      if (isUp) place[dim] = (place[dim] + 1) % extent;
    }
  }

  link(place, dim, way) {
    return this.numberOf(place) * 6 + (dim - 1) * 2 + way;
  }

  /** Return what goes from a chip to the next one along a dimension, or back: the more of the two. */
  above(chip, dim) {
    const at = chip * 6 + (dim - 1) * 2;
    return Math.max(this.bytes[at], this.bytes[at + 1]);
  }

  get most() {
    this.most_ ??= this.bytes.reduce((most, each) => Math.max(most, each), 0);
    return this.most_;
  }

  /** Return the most that goes over a link of a device's chip, along each dimension. */
  ofDevice(device) {
    const { chip, place } = this.chipOf(device);
    return [1, 2, 3].map((dim) => {
      const below = [...place];
      below[dim] = (place[dim] + this.extents[dim] - 1) % this.extents[dim];
      return Math.max(this.above(chip, dim), this.above(this.numberOf(below), dim));
    });
  }

  /** Return how hot a link is: 0 where nothing goes over it. */
  level(bytes) {
    return bytes > 0 ? Math.min(Math.floor((bytes / this.most) * LEVELS * 0.99999) + 1, LEVELS) : 0;
  }
}

/** Return what a step sends over some mesh axes: `all` of them, or `a+b`. */
function sentOver(of, choice) {
  return of.sent.filter(([axes]) => choice === "all" || joinedAxes(axes) === choice);
}

/** Return the traffic of a step over some mesh axes; counted once. */
function trafficOf(of, choice) {
  of.traffic ??= new Map();
  if (!of.traffic.has(choice)) {
    const found = new Traffic(of);
    sentOver(of, choice).forEach((each) => found.add(each));
    of.traffic.set(choice, found);
  }
  return of.traffic.get(choice);
}

/** Return what a device sends to the others of its slice or node, and to other slices or nodes. */
function sentFar(of, choice) {
  const { at, rank } = placesOf(of);
  const sums = [0, 0];
  for (const [axes, way, sent] of sentOver(of, choice)) {
    const group = groupsOf(of, axes)[0];
    const slices = new Set(group.map((device) => at[device * rank])).size;
    const inside = group.length / slices;
    const carried = way === "shift" ? sent : (sent * group.length) / (group.length - 1);
    if (inside > 1) sums[0] += way === "shift" ? sent : (carried * (inside - 1)) / inside;
    if (slices > 1) sums[1] += way === "shift" ? sent : (carried * (slices - 1)) / slices / (way === "ring" ? inside : 1);
  }
  return sums;
}

function joinedAxes(axes) {
  return [...axes].sort().join("+");
}

function heatSwatch(level) {
  const line = svg("line", { class: `heat-${level}`, x1: 1, x2: 23, y1: 6, y2: 6 });
  return svg("svg", { class: "swatch heat", viewBox: "0 0 24 12", "aria-hidden": "true" }, line);
}

/** Return what the colours of links say, and how long the busiest takes; of GPUs what each sends. */
function heatKeys(of, choice) {
  const [near, far] = sentFar(of, choice);
  const bytes = (count) => `~ ${binaryBytes(Math.round(count))}`;
  if (!placesOf(of).isTorus) return [`A device sends in a step ${bytes(near)} inside its node, and ${bytes(far)} to other nodes.`];
  const { most } = trafficOf(of, choice);
  const { speed } = of.machine;
  const time = speed && most ? `, ~ ${secondsText(most / speed)} at ${threeFigures(speed / 1e9)} GB/s` : "";
  const over = far ? ` Over DCN ${bytes(far)} per device.` : "";
  const keys = range(most ? LEVELS : 0).map((at) => el("span", { class: "key" }, heatSwatch(at + 1), `to ${binaryBytes(Math.round((most * (at + 1)) / LEVELS))}`));
  return [el("span", {}, `Bytes over a link in a step, one way; the busiest ${bytes(most)}${time}.${over}`), ...keys];
}
