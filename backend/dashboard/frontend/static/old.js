// Run only by browsers that know no modules, and so nothing else of these pages.
document.getElementById("loading").textContent = "This browser is too old for these pages. Use a newer one, or tinkergym jobs in a terminal.";
