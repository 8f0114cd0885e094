// Everything that models or configurations wrote comes in through textContent or setAttribute of
// title and aria-label; nothing is parsed as HTML.
"use strict";
const data = (name) => JSON.parse(document.getElementById(`data-${name}`).textContent);
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
};
const digits = (value, places = 4) => {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const small = Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5;
  return small ? value.toExponential(2) : String(Number(value.toPrecision(places)));
};
const signed = (value) => (value > 0 ? "+" : "") + digits(value).replaceAll("-", "\u2212");

// Text in which every character can be seen: spaces, line ends, controls, direction marks.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const named = (text) =>
  text.replace(HIDDEN, (c) => `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
const visible = (text) =>
  text === "" ? "⟨empty⟩" : named(text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣"));

// --- theme -------------------------------------------------------------------------------------
const themes = ["system", "light", "dark"];
const button = document.getElementById("theme");
let theme = 0;
const showTheme = () => {
  if (theme) document.documentElement.dataset.theme = themes[theme];
  else delete document.documentElement.dataset.theme;
  button.textContent = `Theme: ${themes[theme]}`;
};
button.hidden = false;
button.addEventListener("click", () => {
  theme = (theme + 1) % themes.length;
  showTheme();
});
showTheme();

// --- charts: the values at the nearest step ----------------------------------------------------
const readable = (figure, chart) => {
  const svg = figure.querySelector(":scope > svg");
  const readout = figure.querySelector(".readout");
  const steps = [...new Set(chart.curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  if (!steps.length) return;
  const guide = document.createElementNS("http://www.w3.org/2000/svg", "line");
  guide.setAttribute("class", "guide");
  guide.setAttribute("y1", chart.top);
  guide.setAttribute("y2", chart.bottom);
  let at = -1;
  const show = (place) => {
    at = Math.max(0, Math.min(steps.length - 1, place));
    const step = steps[at];
    const [low, high] = chart.x;
    const x = chart.left + ((step - low) / (high - low)) * (chart.right - chart.left);
    guide.setAttribute("x1", x);
    guide.setAttribute("x2", x);
    svg.append(guide);
    readout.replaceChildren(make("b", { text: chart.places.length ? `token ${chart.places[step]}` : `step ${step}` }));
    for (const curve of chart.curves) {
      const index = curve.steps.indexOf(step);
      if (index < 0 || curve.values[index] === null) continue;
      const range = curve.low.length && curve.low[index] !== null
        ? ` [${digits(curve.low[index], 3)}, ${digits(curve.high[index], 3)}]` : "";
      readout.append("  ", make("span", { class: `swatch s${curve.colour}` }),
        `${chart.curves.length > 1 ? `${named(curve.label)} ` : ""}${digits(curve.values[index])}${range}`);
    }
  };
  const point = (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const share = (x - chart.left) / (chart.right - chart.left);
    const wanted = chart.x[0] + share * (chart.x[1] - chart.x[0]);
    let best = 0;
    steps.forEach((step, place) => {
      if (Math.abs(step - wanted) < Math.abs(steps[best] - wanted)) best = place;
    });
    show(best);
  };
  const clear = () => {
    guide.remove();
    readout.replaceChildren();
    at = -1;
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", clear);
  figure.addEventListener("blur", clear);
  figure.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key]);
  });
};
for (const [name, chart] of Object.entries(data("charts"))) readable(document.getElementById(name), chart);

// --- gate anatomy ------------------------------------------------------------------------------
const choice = document.getElementById("anatomy-choice");
const showAnatomy = () => {
  for (const block of document.querySelectorAll(".anatomy")) block.hidden = block.id !== choice.value;
};
if (choice) {
  choice.addEventListener("change", showAnatomy);
  showAnatomy();
}
const pushedTable = (rows, caption) => {
  const head = make("tr");
  for (const text of ["token", "id", "times", "sum, nats"]) head.append(make("th", { scope: "col", text }));
  const body = make("tbody");
  for (const [id, text, count, sum] of rows) {
    body.append(make("tr", {}, make("th", { scope: "row" }, make("code", { text: visible(text) })),
      make("td", { text: id }), make("td", { text: count }), make("td", { text: signed(sum) })));
  }
  return make("table", {}, make("caption", { text: caption }), make("thead", {}, head), body);
};
const pushed = data("pushed");
for (const place of document.querySelectorAll(".pushed")) {
  const { up, down } = pushed[place.dataset.of];
  if (!up.length && !down.length) place.append(make("p", { text: "No token was recorded." }));
  else place.append(pushedTable(up, "Pushed up (reward above 0)"), pushedTable(down, "Pushed down (reward below 0)"));
}

// --- configuration -----------------------------------------------------------------------------
const config = data("config");
const options = document.getElementById("config");
if (config && options) {
  const search = document.getElementById("config-search");
  const only = document.getElementById("config-given");
  const given = new Set(config.given);
  const head = make("tr", {}, make("th", { scope: "col", text: "option" }));
  for (const text of config.head) head.append(make("th", { scope: "col", text: config.head.length > 1 ? named(text) : "value" }));
  const body = make("tbody");
  const rows = config.rows.map((cells) => {
    const row = make("tr", {}, make("th", { scope: "row", text: named(cells[0]) }));
    for (const text of cells.slice(1)) row.append(make("td", { text: named(text) }));
    body.append(row);
    return [row, cells.join("\n").toLowerCase(), given.has(cells[0])];
  });
  options.append(make("thead", {}, head), body);
  const filter = () => {
    let shown = 0;
    for (const [row, text, isGiven] of rows) {
      row.hidden = !text.includes(search.value.trim().toLowerCase()) || (only.checked && !isGiven);
      shown += !row.hidden;
    }
    document.getElementById("config-count").textContent = `${shown} of ${rows.length}`;
  };
  search.addEventListener("input", filter);
  only.addEventListener("change", filter);
  only.closest("label").hidden = !given.size;
  filter();
}
