// The page that takes a scenario.
"use strict";

const form = document.querySelector("form");
const state = document.getElementById("state");

for (const kind of data.kinds) form.elements.kind.append(new Option(kind, kind));

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  state.className = "";
  state.textContent = "asked";
  try {
    const question = { scenario: form.elements.scenario.value, page: true };
    const answer = await answerOf(form.elements.kind.value, question, (words) => {
      state.textContent = words;
    });
    location.assign(`/results/${answer.id}`);
  } catch (error) {
    state.className = "mistake";
    state.textContent = error.message;
  }
});
document.documentElement.dataset.ready = "";
