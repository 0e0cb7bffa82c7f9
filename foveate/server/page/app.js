/**
 * The page put together: who is told what. Owns the shortcuts and the sentences that are said aloud. Everything that is
 * drawn, kept or asked is owned by the modules it joins.
 */

import { Refusal, servedModel, setKey } from "./api.js";
import { ChatView } from "./chat_view.js";
import { Composer } from "./composer.js";
import { askForKey, editParams, showPicture, showShortcuts } from "./dialogs.js";
import { ServerPanel } from "./server_view.js";
import { Session } from "./session.js";
import { Sidebar } from "./sidebar.js";
import { StatusFeed } from "./status.js";
import { openStore } from "./store.js";
import { startTheme } from "./theme.js";
import { Welcome } from "./welcome.js";

const AGAIN_MS = 3000;
const at = (id) => document.getElementById(id);

/** Say a sentence to screen readers. */
function say(sentence) {
  at("said").textContent = sentence;
}

/** Show a line above the conversation; null takes it away. */
function banner(sentence) {
  at("banner").textContent = sentence ?? "";
  at("banner").hidden = sentence === null;
}

async function start() {
  startTheme(at("theme"));
  const store = await openStore(banner);
  const feed = new StatusFeed();
  const panel = new ServerPanel({ feed, node: at("server") });
  const session = new Session({ store, feed, model: { id: null, vision: true }, changed });
  const sidebar = new Sidebar({ session, node: at("sidebar"), opener: at("menu"), veil: at("veil") });
  const composer = new Composer({
    ask: ({ text, pictures, editing }) => session.ask(text, pictures, editing),
    stop: () => session.stop(),
    room: (editing) => session.roomForPictures(editing),
    say,
  });
  const welcome = new Welcome(({ text, pictures }) => session.ask(text, pictures));
  const act = {
    again: () => session.regenerate(),
    edit: async () => composer.set(await session.lastQuestion(), true),
    show: showPicture,
  };
  const view = new ChatView({ session, act, empty: () => welcome.view(), scroller: at("scroller") });
  at("messages").append(view.node);
  at("composer").append(composer.node);

  function changed(what, message) {
    if (what === "list") sidebar.render();
    else if (what === "conversation") view.render();
    else view.update(message);
    // With each piece of an answer nothing but the answer changes.
    if (what === "message" && message.state === "running") return;
    composer.update({ running: session.running, vision: session.model.vision });
    if (what === "message") ended(session, view, message);
    document.title = session.current.title ? `${session.current.title} · foveate` : "foveate";
  }

  const params = () => editParams(session.current.params, (params) => session.setParams(params));
  at("params").addEventListener("click", params);
  at("help").addEventListener("click", showShortcuts);
  listen({ session, sidebar, composer, params, panel });
  await session.load();
  await Promise.all([welcome.load(), meet(session, feed)]);
  welcome.model = session.model;
  at("model").textContent = session.model.id ?? "";
  if (session.current.messages.length === 0) changed("conversation");
  else composer.update({ running: session.running, vision: session.model.vision });
  composer.focus();
  document.body.dataset.ready = "";
}

const told = new WeakSet();

function ended(session, view, message) {
  if (told.has(message) || session.runOf(message)) return;
  told.add(message);
  const how = { done: "Answer complete", stopped: "Answer stopped", failed: "There is no answer" }[message.state];
  say(`${how}. ${message.text.slice(0, 300)}`);
  // The question before it may be edited from now on.
  if (session.current.messages.includes(message)) view.render();
}

/** Learn which model is served; asks for a key where one is needed and again while there is no connection. */
async function meet(session, feed) {
  try {
    session.model = await servedModel();
    banner(null);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    if (error.status === 401) {
      await new Promise((resolve) => askForKey((key) => resolve(setKey(key))));
      feed.restart();
    } else {
      banner(`${error.message} Trying again …`);
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
    await meet(session, feed);
  }
}

function listen({ session, sidebar, composer, params, panel }) {
  const alt = { KeyN: () => sidebar.startNew(), KeyP: params, KeyU: () => composer.choose(), KeyS: () => panel.open() };
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const writing = event.target.matches("input, textarea");
    const plain = !event.altKey && !event.ctrlKey && !event.metaKey;
    // By the key's place: with Alt, some systems put other letters on the keys.
    if (event.altKey && !event.ctrlKey && !event.metaKey && alt[event.code]) {
      event.preventDefault();
      alt[event.code]();
    } else if (event.key === "Escape" && session.running) {
      session.stop();
    } else if (plain && !writing && event.key === "/") {
      event.preventDefault();
      composer.focus();
    } else if (plain && !writing && event.key === "?") {
      event.preventDefault();
      showShortcuts();
    }
  });
}

start();
