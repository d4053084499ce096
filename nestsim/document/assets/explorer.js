"use strict";
// Candidates of a search: what they take on other bandwidths, which are on the front,
// and which a reader has picked. `closedForm` is that of nestsim.features.run.whatif.
const closedForm = {
  // What the changes of a level at a quarter, half and twice its bandwidth count for.
  weights: (factor) => {
    const x = 1 / factor;
    return [
      Math.max(x - 2, 0) / 2,
      x > 2 ? (4 - x) / 2 : Math.max(x - 1, 0),
      2 * Math.max(1 - x, 0),
    ];
  },

  // The terms of a candidate where levels have other bandwidths [s].
  terms: (columns, row, factors) => {
    const count = columns.terms.length;
    const changes = columns.changes_s[row];
    const terms = [...columns.terms_s[row]];
    factors.forEach((factor, level) => {
      closedForm.weights(factor).forEach((weight, way) => {
        if (weight === 0) return;
        for (let term = 0; term < count; term += 1) {
          terms[term] += weight * changes[(3 * level + way) * count + term];
        }
      });
    });
    return terms;
  },

  // Its time [s]: the planned one where nothing is changed.
  time: (columns, row, factors) => {
    const before = columns.terms_s[row];
    const moved = closedForm
      .terms(columns, row, factors)
      .reduce((sum, term, place) => sum + (term - before[place]), 0);
    return columns.planned_s[row] + moved;
  },

  // Bandwidths of levels over what they have, where ratios of oversubscription change
  // what leads to the level above.
  factors: (levels, bandwidths, ratios) =>
    bandwidths.map((bandwidth, level) => {
      const below = level > 0 ? levels[level - 1].oversubscription : null;
      return below === null ? bandwidth : (bandwidth * below) / ratios[level - 1];
    }),

  // Which rows no other one is both below in memory and time.
  front: (rows, memory, time) => {
    const ordered = [...rows].sort((a, b) => memory(a) - memory(b) || time(a) - time(b));
    const kept = [];
    let best = Infinity;
    for (const row of ordered) {
      if (time(row) < best) {
        kept.push(row);
        best = time(row);
      }
    }
    return kept;
  },
};

const explore = (place, columns) => {
  const count = columns.tp.length;
  const rows = [...Array(count).keys()];
  const MOST_LISTED = 100;
  const SVG = "http://www.w3.org/2000/svg";

  const made = (name, attributes = {}, ...inside) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...inside);
    return node;
  };
  const drawn = (name, attributes = {}, text = "") => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== "") node.textContent = text;
    return node;
  };

  // Numbers as words ---------------------------------------------------------------

  const digits = (value, most = 4) => Number(value.toPrecision(most)).toString();
  const seconds = (value) => {
    const size = Math.abs(value);
    if (size === 0) return "0 s";
    if (size >= 1) return `${digits(value)} s`;
    return size >= 1e-3 ? `${digits(value * 1e3)} ms` : `${digits(value * 1e6)} µs`;
  };
  const gibibytes = (value) => `${digits(value / 2 ** 30, 3)} GiB`;
  const rate = (value) =>
    value >= 1e12 ? `${digits(value / 1e12)} TB/s` : `${digits(value / 1e9)} GB/s`;
  const label = (row) =>
    ["tp", "pp", "cp", "ep", "dp", "b", "v"]
      .filter((name) => name === "tp" || name === "pp" || name === "dp" || name === "b" || columns[name][row] > 1)
      .map((name) => `${name}${columns[name][row]}`)
      .join(" ");
  const fullLabel = (row) => `${label(row)}, ${columns.recomputed[row]}, ZeRO ${columns.zero[row]}`;

  // What is asked ------------------------------------------------------------------

  const { levels } = columns;
  const asked = {
    bandwidths: levels.map(() => 1),
    ratios: levels.map((level) => level.oversubscription),
    batch: "any",
    hour: columns.device_hour,
  };
  let factors = levels.map(() => 1);
  let times = columns.planned_s;
  let picked = null;
  // Ends of each axis that are kept, as shares of it.
  const kept = new Map();

  const costOf = (row) =>
    (asked.hour * columns.num_devices * times[row]) / 3600 / columns.tokens;

  // Axes ---------------------------------------------------------------------------

  const listed = (name, title) => {
    const values = columns[name];
    const stops = [...new Set(values)].sort((a, b) =>
      typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en"),
    );
    const last = stops.length - 1;
    return {
      title,
      stops: () => stops.map(String),
      share: (row) => (last === 0 ? 0.5 : stops.indexOf(values[row]) / last),
      words: (share) => String(stops[Math.round(share * last)]),
      step: last === 0 ? 1 : 1 / last,
    };
  };
  const measured = (title, valueOf, words) => {
    const ends = () => {
      const values = rows.map(valueOf);
      return [Math.min(...values), Math.max(...values)];
    };
    let [low, high] = ends();
    return {
      title,
      refresh: () => {
        [low, high] = ends();
      },
      stops: () => [words(low), words((low + high) / 2), words(high)],
      share: (row) => (high === low ? 0.5 : (valueOf(row) - low) / (high - low)),
      words: (share) => words(low + share * (high - low)),
      step: 0.05,
    };
  };
  const axes = [
    listed("tp", "tp"),
    listed("pp", "pp"),
    listed("cp", "cp"),
    listed("ep", "ep"),
    listed("b", "micro-batch"),
    listed("recompute", "recompute"),
    measured("time", (row) => times[row], seconds),
    measured("memory", (row) => columns.memory_bytes[row], gibibytes),
  ];
  const NEAR = 1e-9;
  const isKept = (row) =>
    (asked.batch === "any" || columns.b[row] === Number(asked.batch)) &&
    axes.every((axis) => {
      const ends = kept.get(axis);
      if (!ends) return true;
      const share = axis.share(row);
      return share >= ends[0] - NEAR && share <= ends[1] + NEAR;
    });

  // Parts of the page --------------------------------------------------------------

  const answer = made("p", { role: "status", class: "answer" });
  const sliders = made("fieldset", { class: "sliders" }, made("legend", {}, "What if"));
  const filters = made("fieldset", { class: "sliders" }, made("legend", {}, "Keep candidates"));
  const lines = made("div", { class: "chart" });
  const points = made("div", { class: "chart" });
  const listing = made("table");
  const chosenTerms = made("table");
  const watched = [];
  let number = 0;

  const slider = (group, title, options, words, act) => {
    number += 1;
    const id = `${place.dataset.explorer}-${number}`;
    const input = made("input", { type: "range", id, ...options });
    const output = made("output", { for: id });
    const row = made("div", { class: "slider" }, made("label", { for: id }, title), input, output);
    group.append(row);
    const start = input.value;
    const tell = () => {
      const text = words(Number(input.value));
      output.textContent = text;
      input.setAttribute("aria-valuetext", text);
    };
    input.addEventListener("input", () => {
      act(Number(input.value));
      update();
    });
    watched.push({ tell, reset: () => { input.value = start; act(Number(start)); }, input });
    return input;
  };

  // Bandwidths go by octaves: a quarter to four times.
  const OCTAVES = { min: "-2", max: "2", step: "0.125", value: "0" };
  levels.forEach((level, place) => {
    slider(
      sliders,
      `Bandwidth of level ${level.name}`,
      OCTAVES,
      (octave) => `${digits(2 ** octave, 3)} x, ${rate(level.bandwidth_bytes_per_s * factors[place])}`,
      (octave) => {
        asked.bandwidths[place] = 2 ** octave;
      },
    );
  });
  levels.forEach((level, place) => {
    if (level.oversubscription === null || place === levels.length - 1) return;
    slider(
      sliders,
      `Oversubscription of level ${level.name}`,
      OCTAVES,
      (octave) => `${digits(level.oversubscription * 2 ** octave, 3)} : 1`,
      (octave) => {
        asked.ratios[place] = level.oversubscription * 2 ** octave;
      },
    );
  });
  const batches = [...new Set(columns.b)].sort((a, b) => a - b);
  if (batches.length > 1) {
    slider(
      sliders,
      "Micro-batch",
      { min: "0", max: String(batches.length), step: "1", value: "0" },
      (stop) => (stop === 0 ? "any" : String(batches[stop - 1])),
      (stop) => {
        asked.batch = stop === 0 ? "any" : String(batches[stop - 1]);
      },
    );
  }
  if (columns.device_hour !== null) {
    slider(
      sliders,
      "Price of a device for an hour",
      OCTAVES,
      (octave) => `${digits(columns.device_hour * 2 ** octave, 3)} ${columns.currency}`,
      (octave) => {
        asked.hour = columns.device_hour * 2 ** octave;
      },
    );
  }
  for (const axis of axes) {
    axis.inputs = [];
    if (axis.stops().length < 2) continue;
    const keep = (place, share) => {
      const ends = [...(kept.get(axis) ?? [0, 1])];
      ends[place] = share;
      if (ends[0] <= 0 && ends[1] >= 1) kept.delete(axis);
      else kept.set(axis, ends);
    };
    const options = { min: "0", max: "1", step: String(axis.step) };
    axis.inputs = [
      slider(filters, `${axis.title} from`, { ...options, value: "0" }, axis.words, (share) => keep(0, share)),
      slider(filters, `${axis.title} to`, { ...options, value: "1" }, axis.words, (share) => keep(1, share)),
    ];
  }
  const reset = made("button", { type: "button" }, "As built");
  reset.addEventListener("click", () => {
    for (const one of watched) one.reset();
    kept.clear();
    update();
  });

  const pick = (row) => {
    picked = picked === row ? null : row;
    update();
  };

  // Parallel coordinates -----------------------------------------------------------

  const TOP = 34;
  const HEIGHT = 260;
  const drawLines = (shown, best) => {
    const width = Math.max(lines.clientWidth, 320);
    const svg = drawn("svg", { viewBox: `0 0 ${width} ${TOP + HEIGHT + 24}`, height: TOP + HEIGHT + 24, width: "100%" });
    const xs = axes.map((_, place) => 24 + ((width - 96) * place) / (axes.length - 1));
    const y = (share) => TOP + HEIGHT * (1 - share);
    const path = (row) =>
      axes.map((axis, place) => `${place ? "L" : "M"}${xs[place].toFixed(1)} ${y(axis.share(row)).toFixed(1)}`).join("");
    const isShown = new Set(shown);
    const ordered = [...rows.filter((row) => !isShown.has(row)), ...shown];
    for (const row of ordered) {
      const line = drawn("path", { d: path(row), class: isShown.has(row) ? "kept" : "left", "data-row": row });
      line.addEventListener("click", () => pick(row));
      svg.append(line);
    }
    for (const [row, kind] of [[best, "best"], [picked, "picked"]]) {
      if (row !== null && row !== undefined) svg.append(drawn("path", { d: path(row), class: kind }));
    }
    axes.forEach((axis, place) => {
      const x = xs[place];
      svg.append(drawn("line", { x1: x, x2: x, y1: y(0), y2: y(1), class: "axis" }));
      svg.append(drawn("text", { x, y: 14, class: "title" }, axis.title));
      const stops = axis.stops();
      const every = Math.ceil(stops.length / 12);
      stops.forEach((stop, at) => {
        if (at % every && at !== stops.length - 1) return;
        const share = stops.length === 1 ? 0.5 : at / (stops.length - 1);
        svg.append(drawn("text", { x: x + 4, y: y(share) + 4, class: "stop" }, stop));
      });
      const ends = kept.get(axis);
      if (ends) {
        svg.append(drawn("rect", { x: x - 6, width: 12, y: y(ends[1]) - 3, height: Math.max(y(ends[0]) - y(ends[1]), 0) + 6, class: "brush" }));
      }
      const grip = drawn("rect", { x: x - 12, width: 24, y: TOP - 8, height: HEIGHT + 16, class: "grip" });
      grip.addEventListener("pointerdown", (event) => brush(axis, event, svg));
      svg.append(grip);
    });
    lines.replaceChildren(svg);
  };

  // Dragging along an axis keeps what lies between both ends; a click keeps all.
  const brush = (axis, event, svg) => {
    if (event.pointerType === "touch") return;
    event.preventDefault();
    const shareAt = (moment) => {
      const down = moment.clientY - svg.getBoundingClientRect().top - TOP;
      return Math.min(Math.max(1 - down / HEIGHT, 0), 1);
    };
    const from = shareAt(event);
    const top = svg.getBoundingClientRect().top;
    const move = (moment) => {
      const down = moment.clientY - top - TOP;
      const to = Math.min(Math.max(1 - down / HEIGHT, 0), 1);
      if (Math.abs(to - from) < 0.02) kept.delete(axis);
      else kept.set(axis, [Math.min(from, to), Math.max(from, to)]);
      const ends = kept.get(axis) ?? [0, 1];
      axis.inputs.forEach((input, place) => {
        input.value = ends[place];
      });
      update();
    };
    const end = (moment) => {
      move(moment);
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
  };

  // Memory and time ----------------------------------------------------------------

  const drawPoints = (shown, best) => {
    const width = Math.max(points.clientWidth, 320);
    const [left, right, top, height] = [64, 16, 10, 260];
    const svg = drawn("svg", { viewBox: `0 0 ${width} ${top + height + 44}`, height: top + height + 44, width: "100%" });
    const ends = (values) => {
      const [low, high] = [Math.min(...values), Math.max(...values)];
      const room = 0.05 * (high - low || high || 1);
      return [low - room, high + room];
    };
    const memory = columns.memory_bytes;
    const [x0, x1] = ends(rows.map((row) => memory[row]));
    const [y0, y1] = ends(rows.map((row) => times[row]));
    const x = (row) => left + ((width - left - right) * (memory[row] - x0)) / (x1 - x0);
    const y = (row) => top + height * (1 - (times[row] - y0) / (y1 - y0));
    for (let tick = 0; tick <= 4; tick += 1) {
      const [across, up] = [x0 + ((x1 - x0) * tick) / 4, y0 + ((y1 - y0) * tick) / 4];
      const [at, down] = [left + ((width - left - right) * tick) / 4, top + height * (1 - tick / 4)];
      svg.append(drawn("line", { x1: left, x2: width - right, y1: down, y2: down, class: "grid" }));
      svg.append(drawn("text", { x: left - 6, y: down + 4, class: "end" }, seconds(up)));
      svg.append(drawn("text", { x: at, y: top + height + 18, class: tick === 4 ? "end" : "title" }, gibibytes(across)));
    }
    svg.append(drawn("text", { x: (left + width) / 2, y: top + height + 38, class: "title" }, "memory of the fullest device"));
    const front = closedForm.front(shown, (row) => memory[row], (row) => times[row]);
    const step = front.map((row, place) => (place ? `H${x(row).toFixed(1)}V${y(row).toFixed(1)}` : `M${x(row).toFixed(1)} ${y(row).toFixed(1)}`));
    svg.append(drawn("path", { d: step.join("") || "M0 0", class: "front" }));
    const isShown = new Set(shown);
    for (const row of [...rows.filter((one) => !isShown.has(one)), ...shown]) {
      const kind = `${isShown.has(row) ? "kept" : "left"} ${columns.replayed_s[row] === null ? "bounded" : "replayed"}`;
      const dot = drawn("circle", { cx: x(row).toFixed(1), cy: y(row).toFixed(1), r: 4, class: kind, "data-row": row });
      dot.addEventListener("click", () => pick(row));
      dot.append(drawn("title", {}, `${fullLabel(row)}: ${seconds(times[row])}, ${gibibytes(memory[row])}`));
      svg.append(dot);
    }
    for (const [row, kind] of [[best, "best"], [picked, "picked"]]) {
      if (row !== null && row !== undefined) svg.append(drawn("circle", { cx: x(row), cy: y(row), r: 8, class: kind }));
    }
    points.replaceChildren(svg);
    return front;
  };

  // Tables -------------------------------------------------------------------------

  const textOf = (value, words) => (value === null ? "-" : words(value));
  const cells = {
    "time, estimated": (row) => seconds(times[row]),
    planned: (row) => seconds(columns.planned_s[row]),
    replayed: (row) => textOf(columns.replayed_s[row], seconds),
    "replay at least": (row) => textOf(columns.bound_s[row], seconds),
    memory: (row) => gibibytes(columns.memory_bytes[row]),
  };
  const settings = {
    recompute: (row) => columns.recomputed[row].replace("recompute ", ""),
    ZeRO: (row) => columns.zero[row],
  };
  if (columns.device_hour !== null) {
    cells[`${columns.currency} for 10⁹ tokens`] = (row) => digits(1e9 * costOf(row));
  }
  const head = (names, numbers) =>
    made("thead", {}, made("tr", {}, ...names.map((name) =>
      made("th", numbers.has(name) ? { scope: "col", class: "number" } : { scope: "col" }, name))));

  const listRows = (shown, front) => {
    const numbers = new Set(Object.keys(cells));
    const names = ["candidate", ...Object.keys(settings), ...numbers, "front"];
    const onFront = new Set(front);
    const body = made("tbody");
    for (const row of shown.slice(0, MOST_LISTED)) {
      const button = made("button", { type: "button", "aria-pressed": String(picked === row), "data-row": row }, label(row));
      button.addEventListener("click", () => {
        pick(row);
        listing.querySelector(`button[data-row="${row}"]`)?.focus();
      });
      const line = made("tr", picked === row ? { class: "shown" } : {}, made("th", { scope: "row" }, button));
      for (const words of Object.values(settings)) line.append(made("td", {}, words(row)));
      for (const words of Object.values(cells)) line.append(made("td", { class: "number" }, words(row)));
      line.append(made("td", {}, onFront.has(row) ? "on it" : ""));
      body.append(line);
    }
    const more = shown.length > MOST_LISTED ? `, the first ${MOST_LISTED} of ${shown.length}` : "";
    const caption = made("caption", {}, `Candidates by estimated time${more}; a click picks one`);
    listing.replaceChildren(caption, head(names, numbers), body);
  };

  const listTerms = (row) => {
    const now = closedForm.terms(columns, row, factors);
    const body = made("tbody");
    columns.terms.forEach((name, term) => {
      const line = [columns.terms_s[row][term], now[term], now[term] - columns.terms_s[row][term]];
      body.append(made("tr", {}, made("th", { scope: "row" }, name), ...line.map((value) => made("td", { class: "number" }, seconds(value)))));
    });
    const names = ["term", "as built", "now", "change"];
    chosenTerms.replaceChildren(
      made("caption", {}, `Planned time of ${fullLabel(row)}, by cause`),
      head(names, new Set(names.slice(1))),
      body,
    );
  };

  // All of it ----------------------------------------------------------------------

  const ranked = (of) => [...rows].sort((a, b) => of[a] - of[b] || a - b);
  const update = () => {
    factors = closedForm.factors(levels, asked.bandwidths, asked.ratios);
    times = rows.map((row) => closedForm.time(columns, row, factors));
    for (const axis of axes) axis.refresh?.();
    for (const one of watched) one.tell();
    const shown = ranked(times).filter(isKept);
    const best = shown.length ? shown[0] : null;
    if (best === null) {
      answer.textContent = "No candidate is left: widen what is kept.";
    } else {
      const before = ranked(columns.planned_s).indexOf(best) + 1;
      answer.textContent =
        `Fastest of ${shown.length}: ${fullLabel(best)}, ${seconds(times[best])} ` +
        `(as built ${seconds(columns.planned_s[best])}, place ${before}). ` +
        "Estimate; the replay is the judge.";
    }
    drawLines(shown, best);
    const front = drawPoints(shown, best);
    listRows(shown, front);
    listTerms(picked ?? best ?? 0);
  };

  const image = (chart, title, about) =>
    made(
      "figure",
      { class: "chosen" },
      made("figcaption", {}, title),
      made("div", { role: "img", "aria-label": `${title}. ${about} The table below has the numbers.` }, chart),
    );
  lines.setAttribute("aria-hidden", "true");
  points.setAttribute("aria-hidden", "true");
  const scrolled = (table, title, kind = "scroll") =>
    made("div", { class: kind, role: "group", "aria-label": title, tabindex: "0" }, table);
  place.append(
    sliders,
    made("p", {}, reset),
    answer,
    image(lines, "Settings, time and memory of each candidate", "A line for each candidate, an axis for each setting. Strong: the fastest one; dashed: the one that is picked."),
    made("p", { class: "note" }, "Drag along an axis to keep what lies there, click it to keep all; or use the sliders below."),
    made("details", {}, made("summary", {}, "Keep candidates by settings, time and memory"), filters),
    image(points, "Memory and estimated time", "A point for each candidate; the line is the Pareto front of those that are kept. Filled: replayed; hollow: bounded only."),
    made("p", { class: "note" }, "Filled: replayed, hollow: bounded only. Times of both are estimates from planned terms, so that they compare."),
    scrolled(listing, "Candidates by estimated time", "scroll listing"),
    scrolled(chosenTerms, "Terms of a candidate"),
  );
  place.hidden = false;
  update();
  new ResizeObserver(() => {
    if (lines.clientWidth !== lines.dataset.width * 1) {
      lines.dataset.width = lines.clientWidth;
      update();
    }
  }).observe(lines);
};

if (typeof document !== "undefined") {
  const explorers = JSON.parse(document.getElementById("explorers").textContent);
  for (const place of document.querySelectorAll(".explorer")) {
    explore(place, explorers[place.dataset.explorer]);
  }
}
