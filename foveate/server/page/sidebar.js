/**
 * The list of conversations: open, rename, delete, new. Owns its nodes and the drawer it becomes on a narrow screen.
 * Changes nothing by itself: the session does.
 */

import { fill, h, iconButton } from "./dom.js";

export class Sidebar {
  #session;
  #list = h("ul", { class: "conversations" });
  #node;
  #opener;
  #veil;
  #renaming = null;
  #confirming = null;

  /** `node` is the aside to fill, `opener` the button that shows it on narrow screens, `veil` what lies behind it. */
  constructor({ session, node, opener, veil }) {
    this.#session = session;
    this.#node = node;
    this.#opener = opener;
    this.#veil = veil;
    const start = h("button", { type: "button", class: "button new", title: "Alt+N", on: { click: () => this.startNew() } }, "New conversation");
    fill(node, start, h("nav", { "aria-label": "Conversations" }, this.#list));
    opener.addEventListener("click", () => this.#show(!node.classList.contains("open")));
    veil.addEventListener("click", () => this.#show(false));
    node.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && node.classList.contains("open")) {
        event.stopPropagation();
        this.#show(false);
        opener.focus();
      }
    });
  }

  startNew() {
    this.#session.startNew();
    this.#show(false);
    document.getElementById("question").focus();
  }

  render() {
    const { conversations } = this.#session;
    const none = h("li", { class: "quiet none" }, "Conversations stay in this browser.");
    fill(this.#list, conversations.length ? conversations.map((one) => this.#item(one)) : none);
  }

  #show(open) {
    this.#node.classList.toggle("open", open);
    this.#veil.hidden = !open;
    this.#opener.setAttribute("aria-expanded", `${open}`);
    if (open) this.#node.querySelector("button").focus();
  }

  #item(conversation) {
    if (this.#renaming === conversation.id) return this.#renamer(conversation);
    if (this.#confirming === conversation.id) return this.#confirmer(conversation);
    const here = conversation === this.#session.current;
    const open = h(
      "button",
      {
        type: "button", class: "conversation", "aria-current": here ? "page" : null,
        on: { click: () => { this.#session.open(conversation); this.#show(false); } },
      },
      conversation.title,
    );
    const rename = iconButton("edit", `Rename ${conversation.title}`, () => this.#turn("rename", conversation), { class: "icon-button small" });
    const remove = iconButton("trash", `Delete ${conversation.title}`, () => this.#turn("remove", conversation), { class: "icon-button small" });
    return h("li", { class: here ? "here" : null }, open, rename, remove);
  }

  #turn(what, conversation) {
    this.#renaming = what === "rename" ? conversation.id : null;
    this.#confirming = what === "remove" ? conversation.id : null;
    this.render();
    const field = this.#list.querySelector("[data-first]");
    field?.focus();
    field?.select?.();
  }

  #renamer(conversation) {
    let over = false;
    const end = (keep) => {
      if (over) return;
      over = true;
      this.#renaming = null;
      if (keep) this.#session.rename(conversation, field.value);
      else this.render();
    };
    const field = h("input", {
      class: "field", value: conversation.title, "aria-label": "Name of the conversation", maxlength: "120", data: { first: "" },
      on: {
        blur: () => end(true),
        keydown: (event) => {
          if (event.key === "Enter") end(true);
          if (event.key === "Escape") { event.stopPropagation(); end(false); }
        },
      },
    });
    return h("li", { class: "here" }, field);
  }

  #confirmer(conversation) {
    const end = (gone) => {
      this.#confirming = null;
      if (gone) this.#session.remove(conversation);
      else this.render();
      this.#node.querySelector("button").focus();
    };
    const yes = h("button", { type: "button", class: "button danger", data: { first: "" }, on: { click: () => end(true) } }, "Delete");
    const no = h("button", { type: "button", class: "button", on: { click: () => end(false) } }, "Keep");
    return h("li", { class: "confirm", role: "group", "aria-label": `Delete ${conversation.title}?` }, yes, no);
  }
}
