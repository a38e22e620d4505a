// Tables of three columns and more carry their columns' names in each cell, for narrow.css.
for (const table of document.querySelectorAll("table.docutils")) {
  const names = [...table.querySelectorAll("thead th")].map((head) => head.innerText);
  if (names.length < 3) continue;
  table.classList.add("wide");
  for (const row of table.querySelectorAll("tbody tr"))
    [...row.cells].forEach((cell, at) => {
      cell.dataset.column = names[at];
      cell.classList.toggle("blank", !cell.innerText.trim());
    });
}
