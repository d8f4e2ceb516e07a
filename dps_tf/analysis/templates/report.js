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
  function fill(plot, trials) {
    const glyphs = new Map(plot.renderers.map((item) => [item.name, item]));
    const entries = plot.below.find((item) => item.type === "Legend").items;
    for (const [name, lines] of glyphs) {
      if (!name || !name.startsWith("lines ")) continue;
      const outcome = name.slice("lines ".length);
      const chosen = trials.filter((trial) => trial.outcome === outcome);
      lines.data_source.data = {
        xs: chosen.map((trial) => trial.steps), ys: chosen.map((trial) => trial.values) };
      glyphs.get(`marks ${outcome}`).data_source.data = {
        x: chosen.flatMap((trial) => trial.steps),
        y: chosen.flatMap((trial) => trial.values),
        note: chosen.flatMap((trial) => trial.steps.map(() => trial.note)) };
      entries.find((entry) => entry.label.value === outcome).visible = chosen.length > 0;
    }
  }
  function offer(figure, plot) {
    const cells = JSON.parse(figure.querySelector(".trials").textContent);
    const choice = figure.querySelector(".choice select");
    cells.forEach((cell, i) => choice.add(new Option(cell.name, i)));
    const show = () => {
      const cell = cells[choice.value] ?? { trials: [], left_out: 0 };
      fill(plot, cell.trials);
      figure.querySelector(".choice [role=status]").textContent =
        cell.left_out ? `${cell.left_out} slower trials are in curves.parquet only.` : "";
    };
    choice.addEventListener("change", show);
    show();
  }

  // A chart takes the place of its figure once the reader comes near.
  async function draw(figure) {
    const item = JSON.parse(figure.querySelector(".chart-data").textContent);
    const chart = figure.querySelector(".chart");
    figure.classList.add("drawn");
    try {
      const [view] = await window.Bokeh.embed.embed_item(item, chart);
      const plots = view.model.children ?? [view.model];
      const legends = plots.flatMap((plot) => plot.below.filter((part) => part.type === "Legend"));
      // Entries are as wide as their texts, of some 8 pixels a letter.
      const fit = () => {
        for (const legend of legends) {
          const longest = Math.max(...legend.items.map((entry) => entry.label.value.length));
          const columns = Math.floor(chart.clientWidth / (8 * longest + 50));
          legend.ncols = Math.min(3, Math.max(1, columns));
        }
      };
      fit();
      new ResizeObserver(fit).observe(chart);
      if (figure.querySelector(".trials")) offer(figure, plots[0]);
      figure.dataset.drawn = "true";
    } catch (error) {
      figure.classList.remove("drawn");
      throw error;
    }
  }
  if (window.Bokeh) {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries.filter((one) => one.isIntersecting)) {
        seen.unobserve(entry.target);
        draw(entry.target);
      }
    }, { rootMargin: "400px" });
    for (const chart of document.querySelectorAll(".chart")) seen.observe(chart.closest("figure"));
  }

  // A link into a folded section opens it.
  function reveal() {
    const target = document.getElementById(location.hash.slice(1));
    if (target && target.matches("details")) {
      target.open = true;
      target.scrollIntoView();
    }
  }
  window.addEventListener("hashchange", reveal);
  reveal();

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
