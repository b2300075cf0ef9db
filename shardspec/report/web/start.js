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

function startTheme() {
  const button = document.getElementById("theme");
  const isDark = () => document.documentElement.dataset.theme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const say = () => (button.textContent = isDark() ? "Light" : "Dark");
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    say();
  });
  say();
}

startTheme();
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
