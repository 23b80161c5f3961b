"use strict";
// Light or dark as the system says, until the button says otherwise; and the tab bar, where there is one.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const words = { system: "as the system", light: "light", dark: "dark" };
  const order = Object.keys(words);
  let chosen = "system";

  function show() {
    const name = chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
    document.documentElement.dataset.theme = name;
    document.getElementById("theme-now").textContent = words[chosen];
  }
  document.getElementById("theme").addEventListener("click", () => {
    chosen = order[(order.indexOf(chosen) + 1) % order.length];
    show();
  });
  dark.addEventListener("change", show);
  show();

  const tabs = [...document.querySelectorAll("[role=tab]")];
  function select(tab, focus) {
    for (const other of tabs) {
      const here = other === tab;
      other.setAttribute("aria-selected", String(here));
      other.tabIndex = here ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = !here;
    }
    if (focus) tab.focus();
  }
  for (const tab of tabs) {
    tab.addEventListener("click", () => select(tab, false));
    tab.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by) select(tabs[(tabs.indexOf(tab) + by + tabs.length) % tabs.length], true);
    });
  }
  const named = tabs.find((tab) => "#" + tab.getAttribute("aria-controls") === location.hash);
  if (tabs.length) select(named || tabs[0], false);
})();

// An SVG element with its attributes and, if given, its text.
function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
