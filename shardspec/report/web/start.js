// What runs when the page is there: the choice of a target, the theme, and all sections.

function startTargets() {
  const select = document.getElementById("target");
  select.addEventListener("change", () => goTo({ at: Number(select.value) }));
  for (const button of document.querySelectorAll("button[data-target]")) {
    button.addEventListener("click", () => goTo({ at: Number(button.dataset.target) }));
  }
  onTarget(() => {
    select.value = String(here.at);
    for (const each of document.querySelectorAll(".of-target")) each.hidden = each.dataset.target !== String(here.at);
    for (const each of document.querySelectorAll("button[data-target]")) {
      if (each.dataset.target === String(here.at)) each.setAttribute("aria-current", "true");
      else each.removeAttribute("aria-current");
    }
    for (const each of document.querySelectorAll(".target-name")) each.textContent = target().name;
  });
}

function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Show the page light or dark; as the system does where nothing is said. */
function showTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = isDark() ? "Light" : "Dark";
}

document.getElementById("theme").addEventListener("click", () => showTheme(isDark() ? "light" : "dark"));
showTheme("");
startSheet();
if (DATA.targets.length) {
  startTargets();
  startArrays();
  startTreemap();
  startMachine();
  startSteps();
  startTables();
  startPlaces();
}
performance.mark("ready");
document.documentElement.dataset.ready = "yes";
