// What both pages do: ask, wait for the answer, say what went wrong.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);

async function answerOf(kind, question, told) {
  let response = await fetch(`/v1/${kind}?wait=10`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(question),
  });
  while (response.status === 202) {
    const job = await response.json();
    told(job.state === "running" && job.doing ? job.doing : job.state);
    await new Promise((done) => setTimeout(done, 500));
    response = await fetch(`/v1/results/${job.job}`);
  }
  const says = await response.json();
  if (!response.ok) throw new Error(says.error.message);
  return says;
}

function element(name, text, ...classes) {
  const made = document.createElement(name);
  made.textContent = text;
  made.classList.add(...classes);
  return made;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  return seconds < 1 ? `${(1000 * seconds).toPrecision(4)} ms` : `${seconds.toPrecision(4)} s`;
}
