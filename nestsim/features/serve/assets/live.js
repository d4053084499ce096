// The page of a result: change something of its plan or network, replay, see.
"use strict";

const SIZES = {
  tensor_model_parallel_size: "Tensor parallel",
  pipeline_model_parallel_size: "Pipeline parallel",
  virtual_pipeline_model_parallel_size: "Virtual stages",
  micro_batch_size: "Micro-batch",
};
const STEPS = 4; // of a slider for each doubling

const controls = document.querySelector(".controls");
const state = document.getElementById("state");
const rows = document.querySelector("tbody");
const answer = data.answer;

function show(words, simulated, verdict, before) {
  const row = document.createElement("tr");
  const time = simulated ? simulated.iteration_time_s : null;
  const gain = before && time ? `${(100 * (time / before - 1)).toFixed(1)} %` : "";
  for (const cell of [words, duration(time), gain, verdict]) row.append(element("td", cell));
  rows.append(row);
}

// Bandwidths of the network: [words, read, write].
function bandwidths(scenario) {
  const network = scenario.cluster.network || {};
  const places = Object.keys(network).map((name) => [name, network, name]);
  for (const level of network.levels || []) places.push([level.name, level, "bandwidth"]);
  return places.filter(
    ([, table, name]) => name.endsWith("bandwidth") && typeof table[name] === "string",
  );
}

function times(text, factor) {
  const [, number, unit] = text.match(/^\s*([\d.eE+]+)\s*(.*)$/);
  return `${Number((Number(number) * factor).toPrecision(6))} ${unit}`;
}

function addNumber(plan, name, words) {
  const label = element("label", words);
  const input = document.createElement("input");
  Object.assign(input, { type: "number", min: 1, name, value: plan[name] || 1 });
  label.append(input);
  controls.append(label);
  return (changed, said) => {
    const value = Number(input.value);
    if (value === (plan[name] || 1)) return;
    changed.plan[name] = value;
    said.push(`${words.toLowerCase()} ${value}`);
  };
}

function addSlider(place, number) {
  const [words, table, name] = place;
  const value = table[name];
  const text = element("span", `${words.replaceAll("_", " ")}: ${value}`);
  const label = document.createElement("label");
  const input = document.createElement("input");
  Object.assign(input, { type: "range", min: -2 * STEPS, max: 2 * STEPS, value: 0 });
  const now = () => times(value, 2 ** (Number(input.value) / STEPS));
  input.addEventListener("input", () => {
    text.textContent = `${words.replaceAll("_", " ")}: ${now()}`;
  });
  label.append(text, input);
  controls.append(label);
  return (changed, said) => {
    if (Number(input.value) === 0) return;
    const [, inner, key] = bandwidths(changed)[number];
    inner[key] = now();
    said.push(`${words.replaceAll("_", " ")} ${now()}`);
  };
}

function addControls(scenario) {
  const changes = Object.entries(SIZES).map(([name, words]) =>
    addNumber(scenario.plan, name, words),
  );
  bandwidths(scenario).forEach((place, number) => changes.push(addSlider(place, number)));
  const button = element("button", "Replay");
  button.type = "submit";
  controls.append(button);
  const before = answer.result.simulated.iteration_time_s;
  document.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const changed = structuredClone(scenario);
    const said = [];
    for (const change of changes) change(changed, said);
    state.className = "";
    state.textContent = "replaying";
    button.disabled = true;
    try {
      const found = await answerOf("simulate", { scenario: changed }, (words) => {
        state.textContent = words;
      });
      const result = found.result;
      show(said.join(", ") || "as it was", result.simulated, result.verdict, before);
      state.textContent = `Step ${duration(result.simulated.iteration_time_s)}, ${result.verdict}`;
    } catch (error) {
      state.className = "mistake";
      state.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  });
}

document.querySelector("h1").textContent = `${answer.kind}: ${answer.result?.scenario ?? "result"}`;
if (answer.state === "refused") {
  state.className = "mistake";
  state.textContent = answer.error.message;
}
if (data.live) {
  show("as it was", answer.result.simulated, answer.result.verdict, null);
  addControls(data.live.scenario);
  document.querySelector("table").hidden = false;
}
if (data.source) {
  const frame = document.createElement("iframe");
  frame.title = "The whole report";
  frame.setAttribute("sandbox", "allow-scripts");
  frame.src = data.source;
  document.querySelector("main").append(frame);
} else if (answer.result) {
  const shown = document.createElement("pre");
  shown.textContent = JSON.stringify(answer.result, null, 2);
  shown.tabIndex = 0;
  document.querySelector("main").append(shown);
}
document.documentElement.dataset.ready = "";
