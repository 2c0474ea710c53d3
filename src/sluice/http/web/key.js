// The dialog that asks for the API key. The key stays in this browser.

import { byId } from "./dom.js";
import { keep, read } from "./storage.js";

let asking = null;

/** Ask for a key, with the reason why. Resolves to whether one was given. Calls at the same time share one dialog. */
export function askForKey(reason = "") {
  asking ??= ask(reason).finally(() => {
    asking = null;
  });
  return asking;
}

function ask(reason) {
  const dialog = byId("key-dialog");
  const field = byId("key");
  byId("key-reason").textContent = reason;
  field.value = read("key", "");
  dialog.returnValue = "";
  dialog.showModal();
  field.focus();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        const isGiven = dialog.returnValue === "use";
        if (isGiven) keep("key", field.value.trim() || null);
        if (dialog.returnValue === "forget") keep("key", null);
        field.value = "";
        resolve(isGiven);
      },
      { once: true },
    );
  });
}

/** Let the dialog's buttons close it. */
export function setUpKeyDialog() {
  const dialog = byId("key-dialog");
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault(); // nothing is sent: a form's address could hold the key
    dialog.close("use");
  });
  byId("key-forget").addEventListener("click", () => dialog.close("forget"));
  byId("key-cancel").addEventListener("click", () => dialog.close("cancel"));
}
