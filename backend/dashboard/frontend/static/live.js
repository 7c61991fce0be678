// A job's event log as it grows. The browser resumes a broken stream after the last event that it saw, so
// nothing is missing and nothing comes twice; a page that is not looked at holds no connection.

import { get, job } from "./api.js";
import { FINAL } from "./format.js";

// Returns what asks for an action: it runs soon, one at a time, and so many milliseconds after its last run at the
// earliest; who cannot wait that long says how long.
export function seldom(action, ms) {
  let ran = -Infinity, due = Infinity, timer = 0, busy = false;
  const plan = () => {
    clearTimeout(timer);
    if (!busy && due < Infinity) timer = setTimeout(run, Math.max(0, due - performance.now()));
  };
  const run = async () => {
    [ran, due, busy] = [performance.now(), Infinity, true];
    await action().catch(() => {}); // A later event asks again.
    busy = false;
    plan();
  };
  return (wait = ms) => { due = Math.min(due, ran + wait); plan(); };
}

export function follow(jobId, after, handlers, told) {
  let source = null, last = after, over = false, asked = null;

  function open() {
    if (source || over || document.hidden) return;
    source = new EventSource(job(jobId, `/events?after=${last}`));
    source.onopen = () => told("live");
    source.onerror = () => {
      asked ??= get(job(jobId)).catch(() => {}).finally(() => { asked = null; }); // Leads to the login if the session has ended.
      if (source?.readyState !== EventSource.CLOSED) return told("lost");
      close(); // Refused: the service is starting, or the session has ended.
      told("lost");
      setTimeout(open, 3000);
    };
    for (const type of ["state", "step", "episode", "evaluation", "update", "checkpoint", "warning"]) {
      source.addEventListener(type, (message) => {
        const event = JSON.parse(message.data);
        if (event.seq <= last) return;
        last = event.seq;
        handlers[type]?.(event.body, event);
        if (type === "state" && FINAL.has(event.body.state)) { over = true; close(); told("ended"); }
      });
    }
  }

  function close() {
    source?.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  open();
}
