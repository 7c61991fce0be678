// A choice of one run among the newest that match what is written next to it.

import { get } from "./api.js";
import { h, replace } from "./dom.js";
import { seldom } from "./live.js";

const MOST = 200, TYPING_MS = 300;

// `onchoice` is told the run's id, empty if none is chosen, and how the choice is called.
export function runChoice(label, without, onchoice) {
  const choice = h("select", { "aria-label": label, onchange: () => onchoice(choice.value, choice.selectedOptions[0].textContent) });
  const search = h("input", { type: "search", size: 14, maxlength: 200, placeholder: "Search runs", "aria-label": `${label}: search`, oninput: () => read() });
  const note = h("span", { class: "quiet small", role: "status" });
  const read = seldom(async () => {
    const found = await get(`/v1/jobs?${new URLSearchParams({ archived: true, limit: MOST, search: search.value })}`).catch((error) => error);
    if (found instanceof Error) {
      note.textContent = found.message;
      return;
    }
    const { jobs, has_older } = found;
    replace(choice, h("option", { value: "" }, `${label}…`), jobs.filter((one) => !without.includes(one.job_id)).map((one) => h("option", { value: one.job_id }, one.name ? `${one.name} (${one.job_id})` : one.job_id)));
    note.textContent = has_older ? ` The newest ${MOST}; search for others.` : "";
  }, TYPING_MS);
  return { element: [search, choice, note], read };
}
