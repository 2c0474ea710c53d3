// The conversations, newest first, kept in the browser: each under a name of its own, so that several tabs keep theirs.

import { announce, button, byId, el } from "./dom.js";
import { keep, names, onOtherTab, read } from "./storage.js";

const NAME = "conversation.";
const MOST = 200;
const LONGEST_TITLE = 60;

/** The list of conversations, and which of them is open. */
export class Conversations {
  /** `onOpen` is called with each conversation that is opened, `isAnswering` tells whether the open one is being continued. */
  constructor(onOpen, isAnswering) {
    this.onOpen = onOpen;
    this.isAnswering = isAnswering;
    this.all = newestFirst(names(NAME).map(kept));
    this.current = this.all[0] ?? fresh();
    this.removed = new Set();
    byId("new-conversation").addEventListener("click", () => this.open(fresh()));
    const opener = byId("open-conversations");
    opener.addEventListener("click", () => {
      opener.setAttribute("aria-expanded", String(document.body.classList.toggle("lists-conversations")));
    });
    onOtherTab(NAME, (id) => this.changedElsewhere(id));
    this.draw();
  }

  open(conversation) {
    this.current = conversation;
    document.body.classList.remove("lists-conversations");
    byId("open-conversations").setAttribute("aria-expanded", "false");
    this.draw();
    this.onOpen(conversation);
  }

  /** Keep a conversation, as the newest one. If another tab has continued it meanwhile, both stay: this one gets a new id. */
  save(conversation) {
    if (this.removed.has(conversation.id)) return; // while its answer was written
    this.all = this.all.filter((each) => each.id !== conversation.id);
    const other = kept(conversation.id);
    if (other !== null && other.revision !== conversation.revision) {
      conversation.id = newId();
      this.all = newestFirst([other, ...this.all]);
    }
    const next = { ...conversation, revision: conversation.revision + 1, saved: Date.now() };
    if (keep(NAME + conversation.id, next)) Object.assign(conversation, next);
    else announce("The browser has no room for this conversation: delete others");
    this.all.unshift(conversation);
    for (const old of this.all.splice(MOST)) keep(NAME + old.id, null);
    this.draw();
  }

  remove(conversation) {
    this.forget(conversation.id);
    keep(NAME + conversation.id, null);
    announce("The conversation was deleted");
  }

  /** Take a conversation off the list. */
  forget(id) {
    this.removed.add(id);
    this.all = this.all.filter((each) => each.id !== id);
    if (this.current.id === id) this.open(this.all[0] ?? fresh());
    else this.draw();
  }

  /** Take over what another tab has kept or removed. */
  changedElsewhere(id) {
    const conversation = kept(id);
    const isCurrent = this.current.id === id;
    if (conversation === null) this.forget(id);
    else if (!isCurrent || !this.isAnswering()) {
      this.all = newestFirst([conversation, ...this.all.filter((each) => each.id !== id)]);
      if (isCurrent) this.open(conversation);
      else this.draw();
    } // what is being written here is kept beside it when it is complete
  }

  draw() {
    const items = this.all.map((each) => {
      const title = titleOf(each);
      const isCurrent = each.id === this.current.id;
      return el(
        "li",
        {},
        button(title, () => this.open(each), { class: "title", "aria-current": isCurrent ? "true" : null }),
        button("×", () => this.remove(each), { class: "remove", "aria-label": `Delete the conversation ${title}` }),
      );
    });
    byId("conversation-list").replaceChildren(...items);
  }
}

/** Return the conversation that is kept under an id, null if there is none. */
function kept(id) {
  const found = read(NAME + id, null);
  return Array.isArray(found?.messages) ? found : null;
}

function newestFirst(conversations) {
  return conversations.filter((each) => each !== null).sort((one, other) => other.saved - one.saved);
}

function fresh() {
  return { id: newId(), revision: 0, saved: 0, system: "", messages: [] };
}

function newId() {
  return crypto.getRandomValues(new Uint32Array(2)).join("-");
}

function titleOf(conversation) {
  const text = conversation.messages.find(({ role }) => role === "user")?.content.trim() ?? "";
  if (text === "") return "Empty conversation";
  return text.length > LONGEST_TITLE ? `${text.slice(0, LONGEST_TITLE)}…` : text;
}
