// A job's event log as it grows. The browser resumes a broken stream after the last event that it saw, so
// nothing is missing and nothing comes twice; a page that is not looked at holds no connection.

import { job } from "./api.js";
import { FINAL } from "./format.js";

export function follow(jobId, after, handlers, told) {
  let source = null, last = after, over = false;

  function open() {
    if (source || over || document.hidden) return;
    source = new EventSource(job(jobId, `/events?after=${last}`));
    source.onopen = () => told("live");
    source.onerror = () => {
      if (source?.readyState !== EventSource.CLOSED) return told("lost");
      close(); // Refused: the service is starting, or the session has ended, which the next read tells.
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
