"use strict";
// A click on a heading sorts its table: up, down, and back to the order in which it is best read.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const next = { none: "ascending", ascending: "descending", descending: "none" };
    const direction = next[head.ariaSort];
    for (const other of heads) other.ariaSort = "none";
    head.ariaSort = direction;
    const sign = direction === "descending" ? -1 : 1;
    const value = (row) => row.cells[column].dataset.value;
    const numeric = head.classList.contains("numeric");
    const rows = direction === "none" ? original : [...original].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === "" || b === "") return (a === "") - (b === "");  // what is missing comes last
      return sign * (numeric ? a - b : a.localeCompare(b, "en", { numeric: true }));
    });
    body.replaceChildren(...rows);
  }));
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => one.open = true));
