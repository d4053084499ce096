"use strict";
// Draws the figures of a page, sorts its tables, moves its window of time, copies its
// snippets. Texts reach the document as text, never as HTML.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const views = new Map();
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Figures ----------------------------------------------------------------------

  const tip = document.getElementById("tip");

  const showTip = (_, event, __, value) => {
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    tip.textContent = String(value);
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, room))}px`;
    tip.style.top = `${event.clientY + 16}px`;
  };

  // Bars too narrow to be told apart from the ones beside them become one bar.
  const thinned = (columns, from, to, pixels) => {
    const narrow = (to - from) / pixels;
    const open = new Map();
    const rows = [];
    for (let k = 0; k < columns.start.length; k += 1) {
      const start = columns.start[k];
      const end = start + columns.length[k];
      if (end < from || start > to) continue;
      const lane = columns.lane[k];
      const last = open.get(lane);
      const count = columns.counts[k] ?? 1;
      if (end - start < 2 * narrow && last && start - last.end < narrow) {
        last.end = Math.max(last.end, end);
        last.count += count;
        if (last.fill !== columns.fills[columns.kind[k]]) last.fill = columns.mixed;
        continue;
      }
      const row = {
        start,
        end,
        count,
        top: columns.tops[lane],
        bottom: columns.bottoms[lane],
        fill: columns.fills[columns.kind[k]],
        name: columns.names[columns.kind[k]],
        stage: columns.stages[lane],
        label: columns.label[k],
      };
      rows.push(row);
      if (end - start < 2 * narrow) open.set(lane, row);
      else open.delete(lane);
    }
    const unit = columns.unit;
    const digits = (value) => Number(value.toPrecision(5));
    for (const row of rows) {
      const when = `${digits(row.start)} to ${digits(row.end)} ${unit}`;
      row.tip =
        row.count > 1
          ? `stage ${row.stage}: ${row.count} bars too short to be told apart, ${when}`
          : `stage ${row.stage}: ${row.name}${row.label === "" ? "" : ` of microbatch ${row.label}`}, ${when}`;
      if (row.count > 1) row.label = "";
    }
    return rows;
  };

  const barsOf = (figure, place, from, to) =>
    thinned(figure.bars, from, to, Math.max(place.clientWidth, 200));

  const draw = async (place) => {
    const figure = figures[place.dataset.figure];
    const { drawing } = figure;
    const hasBars = "start" in figure.bars;
    if (hasBars) {
      const total = drawing.params.find((one) => one.name === "to").value;
      drawing.data = { name: "bars", values: barsOf(figure, place, 0, total) };
    }
    const { view } = await vegaEmbed(place.firstElementChild, drawing, {
      actions: false,
      ast: true,
      defaultStyle: false,
      mode: "vega-lite",
      renderer: "svg",
      tooltip: showTip,
    });
    views.set(place, { view, figure, hasBars });
  };

  // The common window of time ------------------------------------------------------

  const control = document.querySelector(".window");
  let shown = null;

  const setWindow = (from, to) => {
    shown = { from, to };
    const digits = (value) => Number(value.toPrecision(4)).toString();
    control.querySelector("output").textContent =
      `${digits(from)} to ${digits(to)} ${control.dataset.unit}`;
    for (const button of all("[data-from]", control)) {
      const same =
        Number(button.dataset.from) === from && Number(button.dataset.to) === to;
      button.setAttribute("aria-pressed", String(same));
    }
    for (const [place, { view, figure, hasBars }] of views) {
      if (!figure.follows) continue;
      view.signal("from", from).signal("to", to);
      if (hasBars) view.data("bars", barsOf(figure, place, from, to));
      view.runAsync();
    }
  };

  const step = (kind) => {
    const total = Number(control.dataset.total);
    const { from, to } = shown;
    const length = to - from;
    const wanted = { closer: length / 2, wider: length * 2 }[kind] ?? length;
    const next = Math.min(Math.max(wanted, total / 4096), total);
    const shift = { earlier: -length / 2, later: length / 2 }[kind] ?? 0;
    const low = (from + to - next) / 2 + shift;
    const start = Math.min(Math.max(low, 0), total - next);
    setWindow(start, start + next);
  };

  const startWindow = () => {
    if (!control) return;
    control.hidden = false;
    control.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      if (button.dataset.step) step(button.dataset.step);
      else setWindow(Number(button.dataset.from), Number(button.dataset.to));
    });
    const first = control.querySelector("[data-from]");
    setWindow(Number(first.dataset.from), Number(first.dataset.to));
  };

  // Tables -------------------------------------------------------------------------

  const keyOf = (row, column) => {
    const cell = row.cells[column];
    return "key" in cell.dataset ? Number(cell.dataset.key) : cell.textContent.trim();
  };

  const inOrder = (a, b) =>
    typeof a === "number" && typeof b === "number"
      ? a - b
      : String(a).localeCompare(String(b), "en", { numeric: true });

  const sort = (table, column) => {
    const headings = all("thead th", table);
    const rising = headings[column].getAttribute("aria-sort") !== "ascending";
    headings.forEach((heading) => heading.removeAttribute("aria-sort"));
    headings[column].setAttribute("aria-sort", rising ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, place) => [keyOf(row, column), place, row]);
    rows.sort((a, b) => (rising ? 1 : -1) * inOrder(a[0], b[0]) || a[1] - b[1]);
    body.append(...rows.map(([, , row]) => row));
  };

  const startTables = () => {
    for (const table of all("table.sortable")) {
      all("thead button", table).forEach((button, column) => {
        button.addEventListener("click", () => sort(table, column));
      });
    }
  };

  // Snippets -----------------------------------------------------------------------

  const said = document.getElementById("said");

  const copy = async (block) => {
    const code = block.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      said.textContent = "Copied";
      block.querySelector(".copy").dataset.done = "";
    } catch {
      getSelection().selectAllChildren(code);
      said.textContent = "Selected: copy it with the keyboard";
    }
  };

  const startSnippets = () => {
    for (const block of all(".snippet")) {
      const button = block.querySelector(".copy");
      button.hidden = false;
      button.addEventListener("click", () => copy(block));
    }
  };

  // Printing shows what is folded away.
  const openAll = (wanted) => {
    for (const one of all("details")) {
      if (wanted && !one.open) one.dataset.opened = "";
      if (wanted || "opened" in one.dataset) one.open = wanted;
      if (!wanted) delete one.dataset.opened;
    }
  };

  const start = async () => {
    startTables();
    startSnippets();
    addEventListener("beforeprint", () => openAll(true));
    addEventListener("afterprint", () => openAll(false));
    await Promise.all(all(".plot").map(draw));
    startWindow();
    document.documentElement.dataset.ready = "";
    performance.mark("ready");
  };

  start();
})();
