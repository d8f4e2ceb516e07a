"use strict";
(function () {
  // Sorting: every header is a button; aria-sort tells what the rows are in order of.
  function compare(left, right, sign) {
    const a = left.dataset.key, b = right.dataset.key;
    if (a === "" || b === "") return (a === "") - (b === "");
    const x = Number(a), y = Number(b);
    if (!Number.isNaN(x) && !Number.isNaN(y)) return sign * (x - y);
    return sign * a.localeCompare(b, "en", { numeric: true });
  }
  function sort(table, header) {
    const column = Array.prototype.indexOf.call(header.parentNode.cells, header);
    const order = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    for (const other of header.parentNode.cells) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", order);
    const body = table.tBodies[0];
    const sign = order === "ascending" ? 1 : -1;
    const rows = Array.from(body.rows);
    rows.sort((a, b) => compare(a.cells[column], b.cells[column], sign));
    body.append(...rows);
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const header of table.tHead.rows[0].cells) {
      header.querySelector("button").addEventListener("click", () => sort(table, header));
    }
  }

  // Numbers of a point, for a pointer or a finger; the tables hold them for all others.
  const tip = document.getElementById("tip");
  function show(event) {
    tip.textContent = event.target.dataset.tip;
    tip.hidden = false;
    const place = event.target.getBoundingClientRect();
    const left = Math.min(place.right + 6, window.innerWidth - tip.offsetWidth - 8);
    const above = place.top - tip.offsetHeight - 6;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = (above < 8 ? place.bottom + 6 : above) + "px";
  }
  function hide() { tip.hidden = true; }
  for (const mark of document.querySelectorAll(".tooltip")) {
    mark.addEventListener("pointerenter", show);
    mark.addEventListener("pointerleave", hide);
  }
  window.addEventListener("scroll", hide, { passive: true });

  // Filtering: rows that do not hold the text are hidden, and it is said how many remain.
  for (const input of document.querySelectorAll(".filter input")) {
    const rows = document.getElementById(input.dataset.table).tBodies[0].rows;
    const count = document.querySelector(`[data-count="${input.dataset.table}"]`);
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLowerCase();
      let shown = 0;
      for (const row of rows) {
        row.hidden = !row.textContent.toLowerCase().includes(wanted);
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = wanted ? `${shown} of ${rows.length} rows` : "";
    });
  }

  // Learning curves: the trials of the chosen cell go into the sources of their outcomes.
  function fill(view, cell) {
    const names = new Map(view.model.renderers.map((item) => [item.name, item]));
    const outcomes = [...names.keys()].filter((name) => name && name.startsWith("lines "));
    const entries = view.model.below.find((item) => item.type === "Legend").items;
    let end = [Infinity, 0];
    for (const name of outcomes) {
      const outcome = name.slice("lines ".length);
      const trials = cell.trials.filter((trial) => trial.outcome === outcome);
      const marks = { x: [], y: [], trial: [], point: [] };
      for (const trial of trials) {
        trial.steps.forEach((step, i) => {
          marks.x.push(step); marks.y.push(trial.values[i]);
          marks.trial.push(trial.number); marks.point.push(trial.point);
        });
      }
      for (const step of marks.x) end = [Math.min(end[0], step), Math.max(end[1], step)];
      names.get(name).data_source.data = {
        xs: trials.map((trial) => trial.steps), ys: trials.map((trial) => trial.values) };
      names.get(`marks ${outcome}`).data_source.data = marks;
      entries.find((entry) => entry.label.value === outcome).visible = trials.length > 0;
    }
    const has_goal = cell.goal !== null;
    names.get("goal").data_source.data = has_goal ? { x: end, y: [cell.goal, cell.goal] } : { x: [], y: [] };
    entries.find((entry) => entry.label.value === "goal").visible = has_goal;
    view.model.left[0].axis_label = cell.metric;
  }
  async function draw(explorer) {
    const item = JSON.parse(explorer.querySelector(".figure-data").textContent);
    const [view] = await window.Bokeh.embed.embed_item(item, explorer.querySelector(".chart"));
    const data = explorer.querySelector(".trials");
    if (data) {
      const cells = JSON.parse(data.textContent);
      const choice = explorer.querySelector(".cell-choice");
      const note = explorer.querySelector(".note-of-cell");
      cells.forEach((cell, i) => choice.add(new Option(cell.name, i)));
      const show = () => {
        const cell = cells[choice.value];
        fill(view, cell);
        const left_out = cell.left_out ? `${cell.left_out} slower trials are in curves.parquet only.` : "";
        note.textContent = `${cell.notes} ${left_out}`.trim();
      };
      choice.addEventListener("change", show);
      show();
    }
    explorer.dataset.drawn = "true";
  }
  if (window.Bokeh) {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        seen.unobserve(entry.target);
        draw(entry.target);
      }
    }, { rootMargin: "400px" });
    for (const explorer of document.querySelectorAll(".explorer")) seen.observe(explorer);
  }

  // On paper nothing can be unfolded.
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = Array.from(document.querySelectorAll("details:not([open])"));
    for (const item of opened) item.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const item of opened) item.open = false;
  });
  document.documentElement.dataset.ready = "true";
})();
