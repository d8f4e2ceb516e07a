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
