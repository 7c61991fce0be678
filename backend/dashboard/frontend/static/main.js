// Opens the page that the address names.

import { problem, replace } from "./dom.js";

const main = document.getElementById("main");
const [section, id, ...rest] = location.pathname.replace(/^\/dashboard\/?/, "").split("/").map(decodeURIComponent);

async function open() {
  if (!Map.groupBy) throw new SyntaxError(); // The newest thing that the pages use, of 2023.
  if (!section) return (await import("./overview.js")).show(main);
  if (section === "jobs" && id && !rest.length) return (await import("./run.js")).show(main, id);
  if (section === "jobs" && rest[0] === "episodes" && rest[1]) return (await import("./episode.js")).show(main, id, rest[1]);
  if (section === "jobs" && rest[0] === "episodes") return (await import("./episodes.js")).show(main, id);
  if (section === "jobs" && rest[0] === "games") return (await import("./games.js")).show(main, id);
  if (section === "jobs" && rest[0] === "group") return (await import("./group.js")).show(main, id, rest[1], rest[2]);
  if (section === "jobs" && rest[0] === "task") return (await import("./task.js")).show(main, id, rest[1]);
  if (section === "compare") return (await import("./compare.js")).show(main, [id, ...rest]);
  if (section === "usage") return (await import("./usage.js")).show(main);
  if (section === "service") return (await import("./service.js")).show(main);
  throw new Error("There is no such page.");
}

const TOO_OLD = { message: "This browser is too old for these pages.", hint: "They need Chrome 117, Firefox 119, Safari 17.4 or a later one; tinkergym jobs shows the same in a terminal." };

open().catch((error) => replace(main, problem(error instanceof SyntaxError ? TOO_OLD : error)));
