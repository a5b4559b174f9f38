"use strict";
// Makes the tables sortable, offers them as CSV, and switches between light and dark. The page
// reads the same without it: every control is made here.

const said = document.getElementById("said");

function make(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// ---- sorting ------------------------------------------------------------------------------

const valueOf = (cell) => cell.dataset.value ?? cell.textContent.trim();

function compare(a, b, numeric, direction) {
  // What is missing comes last, whichever way the column is sorted.
  if (a === "" || b === "") return (a === "") - (b === "");
  const order = numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
  return direction === "descending" ? -order : order;
}

function sortable(table) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const label = head.textContent;
    const button = make("button", label, { type: "button" });
    head.replaceChildren(button);
    head.setAttribute("aria-sort", "none");
    const numeric = head.classList.contains("numeric");
    button.addEventListener("click", () => {
      // Up, down, and back to the order in which the table is best read.
      const next = { none: "ascending", ascending: "descending", descending: "none" };
      const direction = next[head.getAttribute("aria-sort")];
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", direction);
      const rows = [...original];
      if (direction !== "none") {
        rows.sort((a, b) =>
          compare(valueOf(a.cells[column]), valueOf(b.cells[column]), numeric, direction));
      }
      body.replaceChildren(...rows);
      said.textContent =
        direction === "none" ? "In the original order" : `Sorted by ${label}, ${direction}`;
    });
  });
}

// ---- CSV ----------------------------------------------------------------------------------

function field(text, numeric) {
  // A spreadsheet runs a text that begins like a formula; an apostrophe keeps it a text.
  const safe = !numeric && /^[=+\-@\t\r\n]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csvOf(table) {
  const heads = [...table.tHead.rows[0].cells];
  const lines = [heads.map((head) => field(head.dataset.csv, false))];
  for (const row of table.tBodies[0].rows) {
    lines.push([...row.cells].map((cell) =>
      field(valueOf(cell), cell.classList.contains("numeric"))));
  }
  return lines.map((line) => line.join(",")).join("\n") + "\n";
}

function downloadable(table) {
  const button = make("button", "Download CSV", { type: "button", class: "download" });
  button.setAttribute("aria-describedby", table.caption.id);
  button.addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([csvOf(table)], { type: "text/csv" }));
    const run = document.body.dataset.run.replace(/[^A-Za-z0-9._-]+/g, "-").slice(0, 80);
    make("a", "", { href: address, download: `${run}-${table.dataset.name}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 0);
    said.textContent = `Saved ${table.rows.length - 1} rows as CSV`;
  });
  table.closest(".sheet").prepend(button);
}

for (const table of document.querySelectorAll(".sheet table")) {
  sortable(table);
  downloadable(table);
}

// ---- light and dark -----------------------------------------------------------------------

const KEY = "gatherbench-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const theme = make("button", "Dark", { type: "button", id: "theme" });

function remembered(value) {
  try {
    // A browser may refuse storage to a file: the choice then lasts as long as the page.
    if (value) localStorage.setItem(KEY, value);
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function show(choice) {
  if (choice) document.documentElement.dataset.theme = choice;
  const dark = (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  theme.setAttribute("aria-pressed", String(dark));
  return dark;
}

theme.addEventListener("click", () => {
  const choice = theme.getAttribute("aria-pressed") === "true" ? "light" : "dark";
  remembered(choice);
  show(choice);
});
system.addEventListener("change", () => show(null));
document.getElementById("controls").append(theme);
show(remembered(null));

// ---- print --------------------------------------------------------------------------------

addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
