// Starts the page.

import { call } from "./api.js";
import { Chat } from "./chat.js";
import { Conversations } from "./conversations.js";
import { announce, byId } from "./dom.js";
import { Experiment } from "./experiment.js";
import { askForKey, setUpKeyDialog } from "./key.js";
import { Live } from "./live.js";
import { notReady, RETRY_MS } from "./loading.js";
import { Recorded } from "./recorded.js";
import { setUpSettings } from "./settings.js";
import { keep, read } from "./storage.js";

/** The model that is served, and the most tokens of a request. */
let model = { name: "", longest: 4096 };

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

/** Let a narrow window show the chat or the timeline. */
function setUpViews() {
  const views = { "view-chat": false, "view-live": true };
  for (const [id, showsLive] of Object.entries(views)) {
    byId(id).addEventListener("click", () => {
      document.body.classList.toggle("shows-live", showsLive);
      for (const each of Object.keys(views)) byId(each).setAttribute("aria-pressed", String(each === id));
    });
  }
}

/** Ask for the model's name until the server has one. */
async function nameModel() {
  const shown = byId("model");
  for (;;) {
    try {
      const response = await call("v1/models");
      const [first] = (await response.json()).data;
      model = { name: first.id, longest: first.max_model_len };
      shown.textContent = model.name;
      return;
    } catch (error) {
      const why = notReady(error) ?? "the server is not ready";
      shown.textContent = error.status === 401 ? "an API key is needed" : why;
      if (error.status === 401) return;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

setUpTheme();
setUpViews();
setUpKeyDialog();
setUpSettings();
const live = new Live();
const recorded = new Recorded();
const conversations = new Conversations(
  (conversation) => chat.show(conversation),
  () => chat.running !== null,
);
const chat = new Chat(
  () => model.name,
  conversations,
  () => live.expectOwn(),
);
new Experiment(
  () => model,
  live,
  () => recorded.play(),
);
byId("code-close").addEventListener("click", () => byId("code-dialog").close());
byId("change-key").addEventListener("click", async () => {
  if (!(await askForKey())) return;
  announce("The key is kept in this browser");
  nameModel();
  live.trace.retry();
});
nameModel();
recorded.load();
