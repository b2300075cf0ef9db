// The data of the page, elements, and figures as the command line writes them.
// Whatever comes from the data reaches the page as text, or as the value of a harmless attribute.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

/** Return an element: attributes, `on...` listeners, then children; a string is text. */
function el(name, attributes = {}, ...inner) {
  return filled(document.createElement(name), attributes, inner);
}

/** Return an element of SVG. */
function svg(name, attributes = {}, ...inner) {
  return filled(document.createElementNS(SVG, name), attributes, inner);
}

function filled(made, attributes, inner) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...inner.filter((each) => each !== null && each !== undefined && each !== ""));
  return made;
}

/** Return a number with so many places, a tie to the even digit, as Python rounds. */
function fixed(value, places) {
  const scaled = value * 10 ** places;
  const low = Math.floor(scaled);
  if (scaled - low !== 0.5) return value.toFixed(places);
  return ((low % 2 ? low + 1 : low) / 10 ** places).toFixed(places);
}

/** Return three figures: 1.25, 12.5, 125. */
function threeFigures(value) {
  if (value >= 99.95) return fixed(value, 0);
  return fixed(value, value >= 9.995 ? 1 : 2);
}

/** Return bytes in binary units: `96.0 MiB`. */
function binaryBytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let value = count;
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return at ? `${threeFigures(value)} ${units[at]}` : `${count} B`;
}

/** Return a number with its noun. */
function counted(number, what) {
  return `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
}

/** Return a share with as many places as it needs. */
function percent(part, whole) {
  const share = whole ? (100 * part) / whole : 0;
  if (share === 0 || share >= 10) return `${fixed(share, 0)} %`;
  return share >= 1 ? `${fixed(share, 1)} %` : `${Number(share.toPrecision(1))} %`;
}

// mesh axes and their colours

const COLOURS = 6;

/** Return the mesh axes that split something, in the order of the mesh. */
function axesOf(laid) {
  const used = new Set(laid.dims.flatMap((dim) => dim[3]));
  return target().mesh.map(([name]) => name).filter((name) => used.has(name));
}

/** Return the number of the colour of a mesh axis of this target; all targets agree in it. */
function colourOf(axis) {
  return axisNames.indexOf(axis) % COLOURS;
}

const axisNames = [...new Set(DATA.targets.flatMap((each) => each.mesh.map(([name]) => name)))];

/** Return what an area is filled with: a colour, stripes of several, or hatching for whole arrays. */
function fillOf(axes) {
  if (!axes.length) return "url(#whole)";
  if (axes.length === 1) return `var(--axis-${colourOf(axes[0])})`;
  const id = `stripes-${axes.map(colourOf).join("-")}`;
  if (!document.getElementById(id)) document.getElementById("patterns").append(stripes(id, axes));
  return `url(#${id})`;
}

function stripes(id, axes) {
  const width = 15;
  const pattern = { id, width: width * axes.length, height: width * axes.length };
  const bands = axes.map((axis, at) =>
    svg("rect", {
      class: `fill-${colourOf(axis)}`,
      x: at * width,
      width,
      height: width * axes.length,
    })
  );
  const turned = { patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  return svg("pattern", { ...pattern, ...turned }, ...bands);
}

/** Return a small square in the colours of mesh axes. */
function swatchOf(axes) {
  const width = 14 / Math.max(axes.length, 1);
  const bands = axes.map((axis, at) => svg("rect", { class: `fill-${colourOf(axis)}`, x: at * width, width, height: 14 }));
  const whole = svg("rect", { width: 14, height: 14, fill: "url(#whole)" });
  const inner = axes.length ? bands : [whole];
  return svg("svg", { class: "swatch", viewBox: "0 0 14 14", "aria-hidden": "true" }, ...inner);
}
