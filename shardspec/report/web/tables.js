// Tables that are sorted by any column, and saved as CSV.

const SCALES = new Map(Object.entries({
  ...Object.fromEntries(["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].map((unit, at) => [unit, 1024 ** at])),
  ...{ us: 1e-6, ms: 1e-3, s: 1, "%": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15 },
}));

/** Return what a cell is sorted by: its number, in the unit that it names, or its text. */
function sortKey(text) {
  const found = /^(?:at least )?[=~x<\s]*(-?[\d,]*\.?\d+)\s*([A-Za-z%]*)/.exec(text);
  return found ? Number(found[1].replaceAll(",", "")) * (SCALES.get(found[2]) ?? SCALES.get(found[2][0]) ?? 1) : text;
}

/** Return a comparison of texts as people number them, and of numbers, which come first. */
function compare(one, other) {
  const [a, b] = [sortKey(one), sortKey(other)];
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a.localeCompare(b, "en", { numeric: true });
}

/** Return a cell of a CSV file; a spreadsheet would run one that begins like a formula. */
function csvCell(text) {
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function saveCsv(name, rows) {
  const text = rows.map((row) => `${row.map(csvCell).join(",")}\r\n`).join("");
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  el("a", { href: url, download: `${name.replace(/[^\w.-]+/g, "-")}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function csvButton(name, rows) {
  return el("button", { type: "button", class: "csv", "aria-label": `CSV of ${name}`, click: () => saveCsv(name, rows()) }, "CSV");
}

/** Let the rows of a table be put in the order of a column; a second click turns it around. */
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = el("button", { type: "button", click: () => sortBy(column) }, ...head.childNodes);
    head.append(button);
  });
  const sortBy = (column) => {
    const down = heads[column].ariaSort === "ascending";
    heads.forEach((head, at) => (head.ariaSort = at === column ? (down ? "descending" : "ascending") : null));
    const rows = [...table.tBodies[0].rows].sort((a, b) => compare(a.cells[column].textContent, b.cells[column].textContent));
    table.tBodies[0].append(...(down ? rows.reverse() : rows));
  };
}

function startTables() {
  for (const table of document.querySelectorAll("main .scroll > table")) {
    if (!table.tHead || table.id === "array-table") continue;
    sortable(table);
    const title = table.closest("section").querySelector("h2").textContent;
    const rows = () => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent));
    table.parentElement.after(csvButton(`${document.title} ${title}`, rows));
  }
}
