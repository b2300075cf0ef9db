// A page of `report --watch` looks at its own file and shows it anew, where its reader was.
// It needs no server: a frame may load a file again, and says which text it is of (`stamp.js`).

const EVERY = 1000;

/** Return each part of the page that a reader opens and shuts, by what it is called. */
function foldings() {
  const seen = new Map();
  return [...document.querySelectorAll("main details")].map((each) => {
    const within = each.closest("[data-target]")?.dataset.target ?? "";
    const name = `${each.closest("section").id} ${within} ${each.querySelector("summary").textContent}`;
    seen.set(name, (seen.get(name) ?? 0) + 1);
    return [`${name} ${seen.get(name)}`, each];
  });
}

/** Return the heads of columns that have an order, by their table. */
function orders() {
  return [...document.querySelectorAll("main table")].flatMap((table, at) =>
    [...(table.tHead?.rows[0].cells ?? [])].map((head, column) => [`${at} ${column}`, head])
  );
}

const choices = () => [...document.querySelectorAll("main :is(input, select):not([type=search])")];
const nameOf = (input) => input.id || `${input.name} ${input.value}`;

/** Return what the reader has chosen that is not in the address. */
function choice() {
  return {
    scroll: scrollY,
    sheet: document.getElementById("sheet").scrollTop,
    focus: document.activeElement.id,
    theme: document.documentElement.dataset.theme ?? "",
    rows: table.shown,
    open: foldings().map(([name, each]) => [name, each.open]),
    orders: orders().filter(([, head]) => head.ariaSort && head.ariaSort !== "none").map(([name, head]) => [name, head.ariaSort]),
    inputs: choices().map((each) => [nameOf(each), each.type === "radio" ? each.checked : each.value]),
    turned: machine && [machine.yaw, machine.pitch],
    views: [...document.querySelectorAll(".timeline")].map((each) => each.timeLine?.view),
  };
}

/** Choose it all again, as far as it is still there. */
function chooseAgain(kept) {
  showTheme(kept.theme);
  table.shown = kept.rows;
  if (DATA.targets.length) showArrays();
  const open = new Map(kept.open);
  for (const [name, each] of foldings()) each.open = open.get(name) ?? each.open;
  const order = new Map(kept.orders);
  for (const [name, head] of orders()) {
    for (let click = 0; click < 2 && order.has(name) && head.ariaSort !== order.get(name); click += 1) head.querySelector("button").click();
  }
  const values = new Map(kept.inputs);
  for (const each of choices()) {
    const value = values.get(nameOf(each));
    if (value === undefined || (each.type === "radio" ? !value || each.checked : each.value === value)) continue;
    if (each.type === "radio") each.checked = true;
    else each.value = value;
    for (const kind of ["input", "change"]) each.dispatchEvent(new Event(kind, { bubbles: true }));
  }
  if (kept.turned && machine?.isDrawn) machine.turn(...kept.turned);
  document.querySelectorAll(".timeline").forEach((each, at) => kept.views[at] && each.timeLine?.show(...kept.views[at]));
  if (kept.focus) document.getElementById(kept.focus)?.focus({ preventScroll: true });
  document.getElementById("sheet").scrollTop = kept.sheet;
  scrollTo(0, kept.scroll);
}

function startWatch() {
  const own = document.querySelector("meta[name=stamp]").content;
  let frame = null;
  addEventListener("message", (event) => {
    if (event.source !== frame?.contentWindow || typeof event.data !== "string" || event.data === own) return;
    history.replaceState({ kept: choice() }, "", location.href);
    location.reload();
  });
  setInterval(() => {
    frame?.remove();
    frame = null;
    if (document.visibilityState !== "visible") return;
    frame = el("iframe", { src: `${location.href.split(/[?#]/)[0]}?stamp`, hidden: true, "aria-hidden": "true", title: "the file of this page" });
    document.body.append(frame);
  }, EVERY);
}

if (location.protocol === "file:" && parent === window) {
  history.scrollRestoration = "manual";
  const kept = history.state?.kept;
  if (kept) {
    history.replaceState(null, "", location.href);
    chooseAgain(kept);
  }
  startWatch();
}
