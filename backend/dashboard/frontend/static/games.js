// The games of a run: who beats whom, ratings over training, the league, and matches to replay move by move.

import { get, job, lines } from "./api.js";
import { Chart } from "./chart.js";
import { canAct, h, problem, replace, scroll } from "./dom.js";
import { number, whole } from "./format.js";

const short = (name, jobId) => name.replace(`${jobId}/`, "").replace(`${jobId}@`, "version ");

export async function show(main, jobId) {
  const [current, rows] = await Promise.all([get(job(jobId)), get(job(jobId, "/episodes/rows?limit=40"))]);
  const spec = current.spec, path = `/dashboard/jobs/${encodeURIComponent(jobId)}`;
  document.title = `Games of ${spec.name || jobId} · tinkergym`;
  const against = h("section", { class: "panel" }, h("h2", null, "Against each opponent"), h("p", { class: "quiet" }, "Reading the stored games…"));
  const played = h("div", { class: "played", "aria-live": "polite" });
  replace(main,
    h("div", { class: "heading" }, h("h1", null, `Games of ${spec.name || jobId}`), h("div", { class: "buttons" }, h("a", { class: "button", href: path }, "The run"), h("a", { class: "button", href: `${path}/episodes?seats=all` }, "All episodes"))),
    h("p", { class: "quiet" }, spec.environment?.id ?? "", " · ", jobId),
    canAct() ? asked(jobId, played) : h("p", { class: "quiet" }, "A key that may act can let versions play each other here; so does job.crossplay()."), played,
    league(spec), against, matches(rows, jobId, path));
  drawAgainst(against, jobId).catch((error) => replace(against, problem(error)));
  const kept = sessionStorage.getItem(`crossplay ${jobId}`);
  if (kept) draw(played, JSON.parse(kept), jobId);
}

function asked(jobId, played) {
  const pairs = h("input", { type: "number", min: 1, max: 200, value: 20, class: "narrow" }), versions = h("input", { placeholder: "first, newest, three between", size: 26 });
  const against = h("input", { value: "random", size: 16 });
  const play = h("button", { type: "submit", class: "primary" }, "Play");
  const submit = async (event) => {
    event.preventDefault();
    play.disabled = true;
    replace(played, h("p", { class: "quiet" }, "Playing: each pair of players meets in mirrored games. This takes from seconds to minutes."));
    const list = (text) => text.split(/[\s,]+/).filter(Boolean);
    try {
      let found = null;
      for await (const line of lines(job(jobId, "/crossplay"), { pairs: Number(pairs.value), versions: list(versions.value).map(Number), against: list(against.value) })) {
        if (line.error) throw line.error;
        found = line;
      }
      if (!found) throw { message: "The service broke off; try again." };
      sessionStorage.setItem(`crossplay ${jobId}`, JSON.stringify(found));
      draw(played, found, jobId);
    } catch (error) {
      replace(played, problem(error));
    }
    play.disabled = false;
  };
  return h("section", { class: "panel" }, h("h2", null, "Let versions play each other"),
    h("form", { class: "toolbar", onsubmit: submit }, h("label", null, "Versions ", versions), h("label", null, "and ", against), h("label", null, "Pairs of games ", pairs), play),
    h("p", { class: "quiet small" }, "New games, which nothing is trained on. The result stays in this tab; job.crossplay() and tinkergym eval keep it."));
}

function draw(box, { crossplay, ratings }, jobId) {
  const names = crossplay.players.map((one) => one.name);
  const cell = (row, column) => crossplay.cells.find((one) => one.row === row && one.column === column);
  const matrix = scroll("Cross-play", h("table", { class: "matrix" },
    h("caption", null, "Mean return of the row against the column, with the 95 % interval"),
    h("thead", null, h("tr", null, h("td"), names.map((name) => h("th", { scope: "col" }, short(name, jobId))))),
    h("tbody", null, names.map((row) => h("tr", null, h("th", { scope: "row" }, short(row, jobId)), names.map((column) => filled(row === column ? null : cell(row, column))))))));
  const versions = ratings.ratings.filter((one) => one.step !== null).sort((one, other) => one.step - other.step);
  const chart = new Chart("Rating over training", `Elo points, 95 % interval; ${ratings.anchor ? `${short(ratings.anchor, jobId)} is 0` : "the mean is 0"}. 400 points are odds of 10 to 1.`, { onpick: () => {} });
  const agents = [...Map.groupBy(versions, (one) => one.name.replace(/@.*/, ""))];
  chart.set(agents.map(([name, all]) => ({
    label: short(name, jobId) || "rating", steps: all.map((one) => one.step), values: all.map((one) => one.rating), points: true,
    low: all.map((one) => one.interval_95[0]), high: all.map((one) => one.interval_95[1]),
  })));
  const left = Object.entries(ratings.not_rated).filter(([, count]) => count);
  replace(box, matrix, h("div", { class: "charts" }, versions.length ? chart.element : null,
    scroll("Ratings", h("table", null, h("caption", null, "Ratings, best first"), h("thead", null, h("tr", null, ["Player", "Rating", "95 % interval", "Pairs"].map((name, at) => h("th", { scope: "col", class: at ? "number" : null }, name)))),
      h("tbody", null, ratings.ratings.map((one) => h("tr", null, h("td", null, short(one.name, jobId)), h("td", { class: "number" }, number(one.rating, 0)),
        h("td", { class: "number" }, one.interval_95.map((end) => (end === null ? "∞" : number(end, 0))).join(" to ")), h("td", { class: "number" }, whole(one.pairs)))))))),
    left.length ? h("p", { class: "quiet small" }, `Games that do not count for ratings: ${left.map(([why, count]) => `${whole(count)} ${why}`).join(", ")}.`) : null);
}

function filled(one) {
  if (!one) return h("td", { class: "quiet" }, "–");
  const level = Math.min(7, Math.ceil(Math.abs(one.mean_return ?? 0) * 7));
  const name = !one.mean_return ? "" : `${one.mean_return < 0 ? "n" : "p"}${level}`;
  const ends = one.interval_95.map((end) => (end === null ? "?" : number(end, 2))).join(" to ");
  return h("td", { class: `number ${name}`, title: `won ${one.wins}, drew ${one.draws}, lost ${one.losses}` }, number(one.mean_return, 2), h("div", { class: "small quiet" }, ends));
}

function league(spec) {
  const leagues = [["all seats", spec.self_play], ...Object.entries(spec.agents ?? {})].filter(([, one]) => one && typeof one === "object" && "anchor_share" in one);
  const seats = Object.entries(spec.agents ?? {}).map(([agent, one]) => `${agent}: ${one.kind}${one.kind === "shared" ? ` with ${one.agent}` : ""}`).join(", ");
  return h("section", { class: "panel" }, h("h2", null, "Who plays"), h("p", null, seats || "One seat, against the environment's own opponent."),
    leagues.map(([whose, one]) => h("p", null, `League (${whose}): ${number(100 * one.anchor_share, 0)} % of the groups against anchors (${(one.anchors ?? []).map((each) => each.name ?? each.policy ?? each.kind).join(", ") || "none"}), ${number(100 * one.current_share, 0)} % against the newest version, the others against past ones, ${one.past}; a snapshot every ${one.snapshot_every} steps, at most ${one.most_snapshots}.`)));
}

// What the run's own games say: nothing is played for it.
async function drawAgainst(box, jobId) {
  const { opponents, steps, read, more } = await get(job(jobId, "/opponents"));
  const names = Object.keys(opponents), bounds = (one) => [one.low, one.high].map((end) => (end === null ? "?" : number(end, 2))).join(" to ");
  const chart = new Chart("Return over training", "Mean return of the trained seats in the run's own games, with its 95 % interval, by kind of opponent.", { onpick: () => {} });
  chart.set(names.map((name) => { const line = opponents[name].slice(1); return { label: name, points: true, steps: line.map((one) => one.step), values: line.map((one) => one.mean), low: line.map((one) => one.low), high: line.map((one) => one.high) }; }));
  replace(box, h("h2", null, "Against each opponent"), names.length
    ? h("div", { class: "charts" }, chart.element, scroll("Against each opponent", h("table", null, h("thead", null, h("tr", null, ["Opponent", "Mean return", "95 % interval", "Games"].map((name, at) => h("th", { scope: "col", class: at ? "number" : null }, name)))),
      h("tbody", null, names.map((name) => { const [all] = opponents[name]; return h("tr", null, h("td", null, name), h("td", { class: "number" }, number(all.mean, 2)), h("td", { class: "number" }, bounds(all)), h("td", { class: "number" }, whole(all.episodes))); })))))
    : h("p", { class: "quiet" }, steps ? "All seats are trained: a game among them has no opponent." : "No game is stored yet."),
    read < steps ? h("p", { class: "quiet small" }, `From the games of ${whole(read)} of ${whole(steps)} steps.${more ? " Reload the page to read more." : ""}`) : null);
}

function matches({ rows }, jobId, path) {
  const games = new Map();
  for (let at = 0; at < rows.step.length; at += 1) {
    const key = `${rows.step[at]}:${rows.index[at]}`;
    games.set(key, [...(games.get(key) ?? []), `${rows.agent[at]} ${rows.completed[at] ? number(rows.episode_return[at]) : rows.stop_reason[at]}`]);
  }
  return h("section", { class: "panel" }, h("h2", null, "Newest matches"), games.size
    ? h("ul", { class: "matches" }, [...games].slice(0, 40).map(([key, seats]) => h("li", null, h("a", { href: `${path}/episodes/${encodeURIComponent(`${jobId}:${key}`)}` }, key), ` ${seats.join(", ")}`)))
    : h("p", { class: "quiet" }, "None stored yet."));
}
