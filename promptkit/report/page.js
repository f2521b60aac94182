"use strict";
// Sorting and filtering of the prompt table. The page says all it has to say without this script.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const rows = [...body.rows].sort((a, b) => {
        const x = value(a), y = value(b);
        const order = x !== "" && y !== "" && !isNaN(x) && !isNaN(y) ? x - y : x.localeCompare(y);
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
}
const search = document.getElementById("search");
const domain = document.getElementById("domain");
const shown = document.getElementById("shown");
if (search && domain && shown) {
  const rows = [...document.querySelectorAll("table.prompts tbody tr")];
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let n = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(words.every((w) => text.includes(w)) && (!domain.value || row.dataset.domain === domain.value));
      n += !row.hidden;
    }
    shown.textContent = `${n} of ${rows.length} rows shown`;
  };
  search.addEventListener("input", filter);
  domain.addEventListener("change", filter);
}
// The map's drawing, where map.js does not draw it again.
if (!document.getElementById("map-data") && document.getElementById("map-search")) {
  const words = document.getElementById("map-search");
  const choice = document.getElementById("map-domain");
  const marks = [...document.querySelectorAll("svg.map circle")];
  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let n = 0;
    for (const mark of marks) {
      const text = mark.textContent.toLowerCase();
      const on = wanted.every((w) => text.includes(w)) && (!choice.value || mark.dataset.domain === choice.value);
      mark.style.display = on ? "" : "none";
      n += on;
    }
    document.getElementById("map-shown").textContent = `${n} of ${marks.length} points shown`;
  };
  words.addEventListener("input", filter);
  choice.addEventListener("change", filter);
  filter();
}
