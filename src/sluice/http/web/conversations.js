// The conversations, newest first, kept in the browser.

import { announce, button, byId, el } from "./dom.js";
import { keep, read } from "./storage.js";

const MOST = 200;
const LONGEST_TITLE = 60;

/** The list of conversations, and which of them is open. */
export class Conversations {
  /** `onOpen` is called with each conversation that is opened. */
  constructor(onOpen) {
    this.onOpen = onOpen;
    this.all = read("conversations", []).filter((each) => Array.isArray(each?.messages));
    this.current = this.all[0] ?? fresh();
    this.removed = new Set();
    byId("new-conversation").addEventListener("click", () => this.open(fresh()));
    const opener = byId("open-conversations");
    opener.addEventListener("click", () => {
      opener.setAttribute("aria-expanded", String(document.body.classList.toggle("lists-conversations")));
    });
    this.draw();
  }

  open(conversation) {
    this.current = conversation;
    document.body.classList.remove("lists-conversations");
    byId("open-conversations").setAttribute("aria-expanded", "false");
    this.draw();
    this.onOpen(conversation);
  }

  /** Keep a conversation, as the newest one. */
  save(conversation) {
    if (this.removed.has(conversation.id)) return; // while its answer was written
    const others = this.all.filter((each) => each.id !== conversation.id);
    this.all = [conversation, ...others].slice(0, MOST);
    if (!keep("conversations", this.all)) {
      announce("The browser has no room for this conversation: delete others");
    }
    this.draw();
  }

  remove(conversation) {
    this.removed.add(conversation.id);
    this.all = this.all.filter((each) => each.id !== conversation.id);
    keep("conversations", this.all);
    if (this.current.id === conversation.id) this.open(this.all[0] ?? fresh());
    else this.draw();
    announce("The conversation was deleted");
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

function fresh() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), system: "", messages: [] };
}

function titleOf(conversation) {
  const text = conversation.messages.find(({ role }) => role === "user")?.content.trim() ?? "";
  if (text === "") return "Empty conversation";
  return text.length > LONGEST_TITLE ? `${text.slice(0, LONGEST_TITLE)}…` : text;
}
