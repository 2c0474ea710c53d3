// The chat: messages of the open conversation, and the answer that is being written.

import { engineRequestOf } from "./api.js";
import { announce, button, byId, el } from "./dom.js";
import { Follower } from "./follow.js";
import { streamWhenReady } from "./loading.js";
import { GrowingMarkdown, markdown } from "./markdown.js";
import { Pace } from "./pace.js";
import { sampling } from "./settings.js";
import { asCurl, asPython, offer } from "./snippets.js";

/** Draws one conversation and continues it. */
export class Chat {
  /** `model` returns the model's name, `conversations` keeps what is said. `expect` is called when a request is sent,
   * and returns what takes its number at the engine, or null. */
  constructor(model, conversations, expect) {
    this.model = model;
    this.conversations = conversations;
    this.expect = expect;
    this.running = null;
    this.log = byId("messages");
    this.follower = new Follower(this.log);
    this.prompt = byId("prompt");
    this.setUpComposer();
    this.setUpSystem();
    this.show(conversations.current);
  }

  setUpComposer() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(this.prompt.value.trim());
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("composer").requestSubmit();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && document.querySelector("dialog[open]") === null) this.stop();
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("regenerate").addEventListener("click", () => this.regenerate());
    const base = new URL("v1", document.baseURI).href;
    const copies = { "copy-curl": ["Request as curl", asCurl], "copy-python": ["Request as Python", asPython] };
    for (const [id, [title, made]] of Object.entries(copies)) {
      byId(id).addEventListener("click", () => offer(title, made(base, this.draft()), byId(id)));
    }
  }

  setUpSystem() {
    this.system = el("textarea", { id: "system", rows: "3", placeholder: "none" });
    this.system.addEventListener("change", () => {
      const conversation = this.conversations.current;
      conversation.system = this.system.value.trim();
      if (conversation.messages.length > 0) this.conversations.save(conversation);
    });
    byId("settings-body").prepend(el("label", { class: "system" }, el("span", {}, "System prompt"), this.system));
  }

  /** Draw a conversation in place of the one before, whose answer is stopped. */
  show(conversation) {
    this.stop();
    this.system.value = conversation.system;
    this.log.replaceChildren(...conversation.messages.map((message) => drawn(message)));
    this.follower.toEnd();
    this.drawButtons();
    this.prompt.focus({ preventScroll: true });
  }

  /** Return the request that the conversation makes, with what is being written. */
  draft() {
    const { messages } = this.conversations.current;
    const text = this.prompt.value.trim();
    const end = messages.findLastIndex(({ role }) => role === "user") + 1;
    return this.request(text === "" ? messages.slice(0, end) : [...messages, { role: "user", content: text }]);
  }

  request(messages) {
    const { system } = this.conversations.current;
    const first = system === "" ? [] : [{ role: "system", content: system }];
    const sent = messages.filter((message, at) => isSent(message, messages[at + 1]));
    const said = sent.map(({ role, content }) => ({ role, content }));
    return { model: this.model() || undefined, messages: [...first, ...said], ...sampling() };
  }

  async send(text) {
    if (text === "" || this.running !== null) return;
    this.prompt.value = "";
    const conversation = this.conversations.current;
    const message = { role: "user", content: text };
    conversation.messages.push(message);
    this.log.append(drawn(message));
    this.conversations.save(conversation);
    await this.answer(conversation);
  }

  async regenerate() {
    const conversation = this.conversations.current;
    if (this.running !== null || conversation.messages.at(-1)?.role !== "assistant") return;
    conversation.messages.pop();
    this.log.lastElementChild.remove();
    await this.answer(conversation);
  }

  stop() {
    this.running?.abort();
    this.running = null;
  }

  async answer(conversation) {
    const running = new AbortController();
    this.running = running;
    this.drawButtons();
    announce("The model answers");
    const request = this.request(conversation.messages);
    const answer = new Answer(this.log);
    const named = this.expect();
    this.follower.toEnd();
    try {
      const onResponse = (response) => named(engineRequestOf(response));
      const asked = { ...request, stream_options: { include_usage: true } };
      const options = { signal: running.signal, onResponse };
      for await (const event of streamWhenReady("v1/chat/completions", asked, options, answer)) answer.add(event);
    } catch (error) {
      answer.fail(running.signal.aborted ? null : error);
    } finally {
      named(null);
    }
    const message = answer.end();
    conversation.messages.push(message);
    this.conversations.save(conversation);
    if (this.running === running) this.running = null;
    this.drawButtons();
    announce(message.error ?? `The answer is complete: ${message.content}`);
  }

  drawButtons() {
    const runs = this.running !== null;
    const hadFocus = document.activeElement === byId("send") || document.activeElement === byId("stop");
    byId("send").hidden = runs;
    byId("stop").hidden = !runs;
    byId("regenerate").hidden = runs || this.conversations.current.messages.at(-1)?.role !== "assistant";
    if (hadFocus) byId(runs ? "stop" : "send").focus();
    this.log.setAttribute("aria-busy", String(runs));
  }
}

/** Tell whether a message is a part of requests: without an answer it is not, as many templates want roles to alternate. */
function isSent({ role, content }, next) {
  if (role !== "user" || next === undefined) return content !== "";
  return next.role === "assistant" && next.content !== "";
}

/** An answer while it is written. */
class Answer {
  constructor(log) {
    this.message = { role: "assistant", content: "", reasoning: "" };
    this.pace = new Pace();
    this.body = el("div", { class: "text" });
    this.thought = el("pre");
    this.reasoning = el("details", { class: "reasoning", hidden: true }, el("summary", {}, "Reasoning"), this.thought);
    this.facts = el("p", { class: "quiet facts" });
    this.article = el("article", { class: "assistant", "aria-label": "Answer" }, this.reasoning, this.body, this.facts);
    this.text = new GrowingMarkdown(this.body);
    this.isDue = this.isOver = false;
    log.append(this.article);
  }

  /** Note that it is asked for now. */
  begin() {
    this.pace.begin(performance.now());
  }

  /** Say why it does not begin yet. */
  wait(why) {
    this.facts.textContent = `waits: ${why}`;
  }

  add(event) {
    const delta = event.choices[0]?.delta ?? {};
    const brought = (delta.content ?? "") + (delta.reasoning_content ?? "");
    if (brought !== "") this.pace.token(performance.now());
    this.message.content += delta.content ?? "";
    this.message.reasoning += delta.reasoning_content ?? "";
    this.message.ended = event.choices[0]?.finish_reason ?? this.message.ended;
    if (event.usage) this.pace.usage = event.usage;
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => this.isOver || this.draw());
  }

  draw() {
    this.isDue = false;
    this.text.show(this.message.content);
    this.thought.textContent = this.message.reasoning;
    this.reasoning.hidden = this.message.reasoning === "";
    this.facts.textContent = this.pace.shown();
  }

  /** Note why the answer ended early; null: it was stopped here. */
  fail(error) {
    if (error === null) this.message.stopped = true;
    else this.message.error = error.message || String(error);
  }

  /** Draw the whole answer, and return it as a message. */
  end() {
    this.isOver = true;
    const pace = this.pace.summary();
    if (pace !== null) this.message.pace = pace;
    this.article.replaceWith(drawn(this.message));
    return this.message;
  }
}

/** Return a message that is complete. */
function drawn(message) {
  if (message.role === "user") {
    return el("article", { class: "user", "aria-label": "Your message" }, el("p", {}, message.content));
  }
  const facts = [message.stopped ? "stopped" : null, message.ended === "length" ? "cut at its most tokens" : null];
  const copy = button("Copy", () => offer("Answer", message.content, copy), { "aria-label": "Copy this answer" });
  return el(
    "article",
    { class: "assistant", "aria-label": "Answer" },
    message.reasoning
      ? el("details", { class: "reasoning" }, el("summary", {}, "Reasoning"), el("pre", {}, message.reasoning))
      : null,
    el("div", { class: "text" }, markdown(message.content)),
    message.error ? el("p", { class: "notice", role: "alert" }, message.error) : null,
    el(
      "p",
      { class: "quiet facts" },
      [...facts, message.pace].filter((each) => each).join(" · "),
      message.content === "" ? null : copy,
    ),
  );
}
