"use strict";
// A click on a heading sorts the lines of each workload, a second one the other way round; what is missing is last.
for (const head of document.querySelectorAll("thead th")) {
  head.addEventListener("click", () => {
    const up = head.ariaSort !== "ascending";
    for (const other of head.parentElement.cells) other.ariaSort = "none";
    head.ariaSort = up ? "ascending" : "descending";
    const value = (row) => row.cells[head.cellIndex].dataset.value;
    const compare = (a, b) => head.className.includes("numeric") ? a - b : a.localeCompare(b);
    const order = (one, other) => {
      const [a, b] = [value(one), value(other)];
      return a === "" || b === "" ? (a === "") - (b === "") : (up ? 1 : -1) * compare(a, b);
    };
    for (const body of head.closest("table").tBodies) body.append(...[...body.rows].sort(order));
  });
}
