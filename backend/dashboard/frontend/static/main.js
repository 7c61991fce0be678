// Opens the page that the address names.

import { problem, replace } from "./dom.js";

const main = document.getElementById("main");
const [section, id, ...rest] = location.pathname.replace(/^\/dashboard\/?/, "").split("/").map(decodeURIComponent);

async function open() {
  if (!section) return (await import("./overview.js")).show(main);
  if (section === "jobs" && id && !rest.length) return (await import("./run.js")).show(main, id);
  throw new Error("There is no such page.");
}

open().catch((error) => replace(main, problem(error)));
