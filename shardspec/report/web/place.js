// What the reader looks at, in the address of the page: `#target=pod&array=layers/wi&line=model.py:71`.
// An address may be a stranger's: what it names is compared with what the page has, and never shown.

const NOWHERE = { at: 0, array: "", activation: "", line: "", find: "", section: "" };
const followers = [];
let here = placeOf(location.hash);

/** Return the place that an address names: what it leaves out, or names wrongly, is as at first. */
function placeOf(address) {
  const text = address.slice(1);
  if (!text.includes("=")) return { ...NOWHERE, section: text };
  const said = new URLSearchParams(text);
  const named = Object.keys(NOWHERE).map((key) => [key, said.get(key) ?? ""]);
  const at = DATA.targets.findIndex((each) => each.name === said.get("target"));
  return { ...Object.fromEntries(named), at: Math.max(at, 0) };
}

function addressOf({ at, ...rest }) {
  const said = { target: at ? target(at).name : "", ...rest };
  return `#${new URLSearchParams(Object.entries(said).filter(([, text]) => text))}`;
}

/** Go to another place, from which the back button leads here; by a small change it does not. */
function goTo(change, isSmall = false) {
  const next = { ...here, ...change };
  if (addressOf(next) === addressOf(here)) return;
  try {
    history[isSmall ? "replaceState" : "pushState"](null, "", addressOf(next));
  } catch {
    // a frame without an address, or many changes in a moment: the page goes there all the same
  }
  follow(next, here);
}

/** Call a function with each new place and the one before, and whether an address led there. */
function onPlace(follower) {
  followers.push(follower);
}

function follow(next, before, isJump = false) {
  here = next;
  followers.forEach((each) => each(next, before, isJump));
}

function target(at = here.at) {
  return DATA.targets[at];
}

/** Call a function now and whenever another target is chosen. */
function onTarget(listener) {
  onPlace((now, before) => now.at !== before.at && listener());
  listener();
}

/** Show a section, and go on from there by keys. */
function showSection(id) {
  const section = [...document.querySelectorAll("section")].find((each) => each.id === id);
  section?.setAttribute("tabindex", "-1");
  section?.focus({ preventScroll: true });
  section?.scrollIntoView();
}

/** Open what is sent at a line, and mark its operations. */
function showLine(now, before, isJump) {
  if (now.line === before.line && now.at === before.at) return;
  const all = [...document.querySelectorAll("[data-line]")];
  for (const each of all) each.classList.toggle("chosen", each.dataset.line === now.line);
  const found = all.filter((each) => each.dataset.line === now.line && each.checkVisibility());
  for (const each of found) each.open = true;
  if (isJump) found.at(-1)?.scrollIntoView({ block: "center" });
}

function startPlaces() {
  onPlace(showLine);
  onPlace((now, before, isJump) => isJump && now.section !== before.section && showSection(now.section));
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    const line = event.target.closest("[data-line] > summary")?.parentElement;
    if (link) {
      event.preventDefault();
      goTo({ section: link.hash.slice(1) });
      showSection(link.hash.slice(1));
    } else if (line) {
      event.preventDefault();
      goTo({ line: line.open ? "" : line.dataset.line });
      line.open = here.line === line.dataset.line;
    }
  });
  addEventListener("popstate", () => follow(placeOf(location.hash), here, true));
  follow(here, { ...NOWHERE, at: here.at }, true);
}
