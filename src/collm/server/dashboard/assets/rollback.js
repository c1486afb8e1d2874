// Taking an adapter back to the version before: asked for twice, with the admin key if one is set.

import { byId } from "./dom.js";

export class Rollback {
  constructor(store) {
    this.store = store;
    this.adapter = null;
    this.dialog = byId("rollback");
    // The button that opened it may have been made anew meanwhile.
    this.dialog.addEventListener("close", () => {
      const key = CSS.escape(`roll-${this.adapter}`);
      document.querySelector(`[data-key="${key}"]:not(:disabled)`)?.focus();
    });
    this.error = byId("rollback-error");
    this.key = byId("rollback-key");
    this.go = byId("rollback-go");
    byId("rollback-cancel").addEventListener("click", () => this.dialog.close());
    byId("rollback-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
  }

  open(adapter, served) {
    this.adapter = adapter;
    this.error.textContent = "";
    byId("rollback-text").textContent = `New requests to ${adapter} will get the version before `
      + `${served.join(", ")}. Answers under way are not touched. What was trained since `
      + "is dropped.";
    byId("rollback-key-row").hidden = !this.store.facts?.needs_key;
    this.dialog.showModal();
  }

  async send() {
    this.go.disabled = true;
    this.error.textContent = "";
    try {
      const headers = { "content-type": "application/json" };
      if (this.key.value) headers.authorization = `Bearer ${this.key.value}`;
      const response = await fetch("/adapters/rollback", {
        method: "POST", headers, body: JSON.stringify({ adapter: this.adapter }),
      });
      const answer = await response.json().catch(() => ({}));
      if (response.ok) this.done(answer);
      else this.fail(response.status, answer.error?.message);
    } catch {
      this.error.textContent = "The server could not be reached; nothing is known to have changed.";
    } finally {
      this.go.disabled = false;
    }
  }

  done(answer) {
    this.dialog.close();
    byId("notice").textContent = `${this.adapter} was rolled back to ${answer.version}.`;
  }

  fail(status, message) {
    this.error.textContent = status === 401 ? "This is not the admin key; nothing was changed."
      : message ?? `The server refused (status ${status}).`;
    if (status === 401) this.key.focus();
  }
}
