// Tables of three columns and more, or with a long word in the first, carry their columns' names in each cell, for
// narrow.css.
const LONG = /\S{26}/; // it leaves a second column too little of 390 pixels
for (const table of document.querySelectorAll("table.docutils")) {
  const names = [...table.querySelectorAll("thead th")].map((head) => head.innerText);
  const first = [...table.querySelectorAll("td:first-child code")];
  if (names.length < 3 && !first.some((code) => LONG.test(code.innerText))) continue;
  table.classList.add("wide");
  for (const row of table.querySelectorAll("tbody tr"))
    [...row.cells].forEach((cell, at) => {
      cell.dataset.column = names[at];
      cell.classList.toggle("blank", !cell.innerText.trim());
    });
}
