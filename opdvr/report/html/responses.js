// Follows page.js in the same script.
// --- responses: one at a time, filtered --------------------------------------------------------
const COLOUR_BY = { log_ratio: "log-ratio", reward: "reward" };
const ranks = (samples, key) => {
  const sizes = samples.flatMap((sample) => sample[key] || []).filter((v) => v).map(Math.abs).sort((a, b) => a - b);
  return sizes.length ? Math.max(0.1, sizes[Math.floor(0.95 * (sizes.length - 1))]) : 1;
};
const shade = (value, most) => {
  if (!value) return "";
  // The square root, so that small values can be seen beside a few very large ones.
  const strength = 0.72 * Math.sqrt(Math.min(1, Math.abs(value) / most));
  return strength < 0.02 ? "" : `rgba(var(${value > 0 ? "--up" : "--down"}), ${strength.toFixed(3)})`;
};
const select = (label, options, changed) => {
  const box = make("select");
  for (const [value, text] of options) box.append(make("option", { value, text }));
  box.addEventListener("change", changed);
  return [make("label", { text: `${label} ` }, box), box];
};
const fact = (name, value, kind = null) =>
  make("span", {}, `${name} `, make("b", { class: kind, text: value }));

const viewer = (place, samples, show) => {
  const values = (key) => [...new Set(samples.map((sample) => sample[key]))];
  const all = (name, found) => [["", `all ${name}`], ...found.map((v) => [String(v), named(String(v))])];
  let at = 0;
  let found = samples;
  const content = make("div");
  const count = make("span", { role: "status" });
  const refresh = () => {
    found = samples.filter((sample) => (!run.value || sample.run === run.value)
      && (!step.value || String(sample.step) === step.value)
      && (!verdict.value || String(sample.correct) === verdict.value));
    at = Math.min(at, Math.max(0, found.length - 1));
    count.textContent = found.length ? `${at + 1} of ${found.length}` : "none of these";
    content.replaceChildren();
    if (found.length) show(content, found[at]);
  };
  const move = (by) => {
    if (!found.length) return;
    at = (at + by + found.length) % found.length;
    refresh();
  };
  const anew = () => { at = 0; refresh(); };
  const [runLabel, run] = select("Run", all("runs", values("run")), anew);
  const [stepLabel, step] = select("Step", all("steps", values("step").sort((a, b) => a - b)), anew);
  const [verdictLabel, verdict] = select("Verdict", [["", "both"], ["true", "correct"], ["false", "incorrect"]], anew);
  runLabel.hidden = values("run").length < 2;
  const previous = make("button", { type: "button", text: "← Previous (p)" });
  const next = make("button", { type: "button", text: "Next (n) →" });
  previous.addEventListener("click", () => move(-1));
  next.addEventListener("click", () => move(1));
  const controls = make("div", { class: "controls" }, runLabel, stepLabel, verdictLabel, previous, next, count);
  place.append(controls, content);
  place.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, select")) return;
    const by = { n: 1, PageDown: 1, p: -1, PageUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const wasToken = event.target.matches(".token");
    move(by);
    if (wasToken) content.querySelector(".token")?.focus();
  });
  refresh();
  return { controls, refresh };
};

const facts = (sample) => {
  const line = make("p", { class: "facts" });
  line.append(fact("verdict", sample.correct ? "✓ correct" : "✗ incorrect", sample.correct ? "right" : "wrong"),
    fact("score", digits(sample.score)), fact("gold", named(sample.gold)), fact("step", sample.step),
    fact("run", named(sample.run)), fact("source", named(sample.data_source)));
  if (sample.name) line.append(fact("name", named(sample.name)));
  if (sample.response_tokens) line.append(fact("tokens", sample.response_tokens.toLocaleString("en")));
  if (sample.truncated) line.append(fact("", "cut off at the limit", "wrong"));
  if (sample.scale !== null && sample.scale !== undefined) line.append(fact("scale", digits(sample.scale)));
  return line;
};
const block = (name, text, kind) => [make("h3", { class: "minor", text: name }),
  make("div", { class: `model ${kind}`, tabindex: "0", role: "group", "aria-label": name, text: named(text) })];

const describe = (sample, index) => {
  const parts = [`${visible(sample.tokens[index])}`];
  if (sample.ids) parts.push(`id ${sample.ids[index]}`);
  if (sample.log_ratio) parts.push(`log-ratio ${signed(sample.log_ratio[index])} nats`);
  if (sample.reward) parts.push(`reward ${signed(sample.reward[index])}`);
  if (sample.zeroed && sample.zeroed[index]) parts.push("zeroed by the gate");
  return parts.join(", ");
};
const tokenSpan = (sample, index, most, key) => {
  const span = make("span", { class: "token", tabindex: index ? "-1" : "0", "data-index": index,
    role: "img", "aria-label": describe(sample, index), title: describe(sample, index) });
  const text = sample.tokens[index];
  // Tokens of white space alone would have nothing to point at.
  if (text.trim() === "") {
    span.append(make("span", { class: "space", text: visible(text) }), text.replace(/[^\n]/g, ""));
  } else span.textContent = named(text);
  if (sample.zeroed && sample.zeroed[index]) span.classList.add("zeroed");
  if (sample[key]) span.style.background = shade(sample[key][index], most);
  return span;
};
const scaleKey = (most, name) => {
  const line = make("p", { class: "scale", "aria-hidden": "true" }, `${name}: \u2212${digits(most, 2)} nats and below`);
  const bar = make("span");
  for (const share of [-1, -0.5, -0.2, -0.05, 0, 0.05, 0.2, 0.5, 1]) {
    const box = make("i");
    box.style.background = shade(share * most, most) || "var(--raised)";
    bar.append(box);
  }
  line.append(bar, `+${digits(most, 2)} and above; struck through: zeroed by the gate`);
  return line;
};

const heatMap = (place) => {
  const samples = data("samples");
  let key = "log_ratio";
  const show = (content, sample) => {
    const most = ranks(samples, key);
    const detail = make("p", { class: "detail", "aria-live": "polite",
      text: "Point at a token, or Tab to it and use the arrow keys." });
    const body = make("div", { class: "model", role: "group",
      "aria-label": `Response, ${sample.tokens.length} tokens; arrow keys move between them` });
    sample.tokens.forEach((_, index) => {
      if (sample.omitted && sample.omitted[0] === index) body.append(gap(sample));
      body.append(tokenSpan(sample, index, most, key));
    });
    if (sample.omitted && sample.omitted[0] >= sample.tokens.length) body.append(gap(sample));
    const tell = (event) => {
      const token = event.target.closest(".token");
      if (token) detail.textContent = describe(sample, Number(token.dataset.index));
    };
    body.addEventListener("mouseover", tell);
    body.addEventListener("focusin", tell);
    body.addEventListener("keydown", (event) => arrows(event, body));
    content.append(facts(sample), ...block("Prompt", sample.prompt, "prompt"), make("h3", { class: "minor", text: "Response" }));
    if (sample.log_ratio) content.append(scaleKey(most, COLOUR_BY[key]));
    else content.append(make("p", { class: "note", text: "No log-ratio: this run has no teacher, or the response no signal." }));
    content.append(body, detail);
  };
  const view = viewer(place, samples, show);
  const [label, box] = select("Colour", Object.entries(COLOUR_BY), () => { key = box.value; view.refresh(); });
  view.controls.append(label);
};
const gap = (sample) => make("span", { class: "gap",
  text: ` … ${sample.omitted[1].toLocaleString("en")} tokens left out … ` });
const arrows = (event, body) => {
  const tokens = [...body.querySelectorAll(".token")];
  const at = tokens.indexOf(document.activeElement);
  if (at < 0) return;
  // Up and down: the token nearest to this one's middle on the neighbouring line.
  const nextLine = (way) => {
    const here = tokens[at].getBoundingClientRect();
    let best = at;
    let line = null;
    for (let i = at + way; i >= 0 && i < tokens.length; i += way) {
      const box = tokens[i].getBoundingClientRect();
      if (Math.abs(box.top - here.top) < 3) continue;
      if (line === null) line = box.top;
      if (Math.abs(box.top - line) >= 3) break;
      const there = tokens[best].getBoundingClientRect();
      if (best === at || Math.abs(box.left - here.left) < Math.abs(there.left - here.left)) best = i;
    }
    return best;
  };
  const moves = { ArrowLeft: () => at - 1, ArrowRight: () => at + 1, Home: () => 0,
    End: () => tokens.length - 1, ArrowUp: () => nextLine(-1), ArrowDown: () => nextLine(1) };
  if (!(event.key in moves)) return;
  event.preventDefault();
  const to = tokens[Math.max(0, Math.min(tokens.length - 1, moves[event.key]()))];
  tokens[at].tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
};
for (const place of document.querySelectorAll(".viewer")) {
  if (place.dataset.of === "samples") heatMap(place);
  else viewer(place, data("validation"), (content, sample) => content.append(facts(sample),
    ...block("Prompt", sample.prompt, "prompt"), ...block("Response", sample.response, "")));
}
