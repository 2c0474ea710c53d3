// Starts the page.

import { call } from "./api.js";
import { Chat } from "./chat.js";
import { Conversations } from "./conversations.js";
import { announce, byId } from "./dom.js";
import { askForKey, setUpKeyDialog } from "./key.js";
import { setUpSettings } from "./settings.js";
import { keep, read } from "./storage.js";

const RETRY_MS = 2000;

let model = "";

function setUpTheme() {
  const choice = byId("theme");
  choice.value = read("theme", "");
  const apply = () => {
    if (choice.value === "") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice.value;
  };
  choice.addEventListener("change", () => {
    keep("theme", choice.value || null);
    apply();
  });
  apply();
}

/** Ask for the model's name until the server has one. */
async function nameModel() {
  const shown = byId("model");
  for (;;) {
    try {
      const response = await call("v1/models");
      model = (await response.json()).data[0].id;
      shown.textContent = model;
      return;
    } catch (error) {
      shown.textContent = error.status === 401 ? "an API key is needed" : "the server is not ready";
      if (error.status === 401) return;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

setUpTheme();
setUpKeyDialog();
setUpSettings();
const conversations = new Conversations((conversation) => chat.show(conversation));
const chat = new Chat(() => model, conversations, () => {});
byId("code-close").addEventListener("click", () => byId("code-dialog").close());
byId("change-key").addEventListener("click", async () => {
  if (await askForKey()) announce("The key is kept in this browser");
  nameModel();
});
nameModel();
