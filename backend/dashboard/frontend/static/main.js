// Opens the page that the address names.

import { problem, replace } from "./dom.js";

const main = document.getElementById("main");
const [section, id, ...rest] = location.pathname.replace(/^\/dashboard\/?/, "").split("/").map(decodeURIComponent);

async function open() {
  if (!section) return (await import("./overview.js")).show(main);
  throw new Error("There is no such page.");
}

open().catch((error) => replace(main, problem(error)));
