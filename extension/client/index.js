//#region client/src/ids.ts
/** Return a random unique id. */
function newId() {
	if (crypto.randomUUID) return crypto.randomUUID();
	const bytes = crypto.getRandomValues(/* @__PURE__ */ new Uint8Array(16));
	return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
//#endregion
//#region client/src/breadcrumbs.ts
var Breadcrumbs = class {
	#client;
	constructor(client) {
		this.#client = client;
	}
	/** Return one page, and the cursor of the next page if there is one. */
	async list(query, signal) {
		const { data, response } = await this.#client.request("/breadcrumbs", {
			query,
			signal
		});
		if (!Array.isArray(data)) throw this.#client.malformed(response);
		const next = nextCursor(response);
		return next === void 0 ? { items: data } : {
			items: data,
			next
		};
	}
	/** Return a breadcrumb as it is stored, without hints applied. */
	full(id, signal) {
		return this.#client.json(`${pathOf$2(id)}/full`, { signal });
	}
	/** Return all versions. Reads as many pages as needed. */
	async history(id, signal) {
		const versions = [];
		let cursor;
		do {
			const { data, response } = await this.#client.request(`${pathOf$2(id)}/history`, {
				query: { cursor },
				signal
			});
			versions.push(...data);
			cursor = nextCursor(response);
		} while (cursor !== void 0);
		return versions;
	}
	/** Create a breadcrumb. A second call with the same key does not create a second one. */
	async create(crumb, idempotencyKey = newId(), signal) {
		const { data, response } = await this.#client.request("/breadcrumbs", {
			body: crumb,
			headers: { "idempotency-key": idempotencyKey },
			signal
		});
		if (typeof data?.id !== "string") throw this.#client.malformed(response);
		return data;
	}
	/** Replace fields. With a `version`, fails if it is not the current one. */
	update(id, changes, version) {
		return this.#client.json(pathOf$2(id), {
			method: "PATCH",
			body: changes,
			headers: version === void 0 ? {} : { "if-match": String(version) }
		});
	}
	remove(id) {
		return this.#client.json(pathOf$2(id), { method: "DELETE" });
	}
};
function pathOf$2(id) {
	return `/breadcrumbs/${encodeURIComponent(id)}`;
}
/** Return the cursor of the next page, from the Link header. */
function nextCursor(response) {
	const target = /<([^>]*)>\s*;\s*rel="?next"?/.exec(response.headers.get("link") ?? "")?.[1];
	const cursor = /[?&]cursor=([^&]+)/.exec(target ?? "")?.[1];
	return cursor === void 0 ? void 0 : decodeURIComponent(cursor);
}
//#endregion
//#region client/src/errors.ts
var MALFORMED_STATUS = 406;
var ApiError = class extends Error {
	failure;
	constructor(message, failure) {
		super(message);
		this.name = "ApiError";
		this.failure = failure;
	}
	/** HTTP status. 0 without a reply, 406 also for a malformed reply. */
	get status() {
		return this.failure.kind === "malformed" ? MALFORMED_STATUS : this.failure.status;
	}
	get problem() {
		return this.failure.problem;
	}
	/** Seconds to wait, from the `Retry-After` header. */
	get retryAfter() {
		return this.failure.retryAfter;
	}
	/** Whether the same request can succeed later. */
	get isRetryable() {
		return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
	}
};
/** Describe a failure in one sentence. */
function describeFailure({ kind, status, problem }) {
	switch (kind) {
		case "unreachable": return "The server cannot be reached.";
		case "timeout": return "The server does not respond.";
		case "malformed": return "The reply is not from a Breadcrumbs server.";
		case "refused": return sentence(problem?.detail ?? problem?.title ?? `The server replied with status ${status}.`);
	}
}
/** Read the reason why the server refused a request. */
async function readRefusal(server, response) {
	const retryAfter = Number(response.headers.get("retry-after")) || void 0;
	const problem = await readProblem(response);
	return {
		kind: "refused",
		server,
		status: response.status,
		statusText: response.statusText,
		...problem && { problem },
		...retryAfter && { retryAfter }
	};
}
async function readProblem(response) {
	try {
		const document = await response.json();
		return typeof document === "object" && document !== null ? document : void 0;
	} catch {
		return;
	}
}
/** Return the message of any thrown value. */
function messageOf(error) {
	return error instanceof Error ? error.message : String(error);
}
/** A first word that may get a capital letter. URLs, names of fields and model names must stay as they are. */
var PLAIN_WORD = /^\p{Ll}[\p{L}'’-]*[,;:.!?)]*(?=\s|$)/u;
/** Return the text with a capital letter at the start and a full stop at the end. */
function sentence(text) {
	const first = PLAIN_WORD.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text;
	return /[.!?…]$/.test(first) ? first : `${first}.`;
}
//#endregion
//#region client/src/feedback.ts
var MAX_NOTE_LENGTH = 2e3;
/** Maximum number of pages that `ownIn` reads. */
var MAX_OWN_PAGES = 10;
var Ratings = class {
	#client;
	constructor(client) {
		this.#client = client;
	}
	/** Rate an answer. A second rating replaces the first. */
	rate(answer, rating, note) {
		return this.#client.json(pathOf$1(answer), {
			method: "PUT",
			body: note ? {
				rating,
				note
			} : { rating }
		});
	}
	/** Withdraw the own rating of an answer. */
	withdraw(answer) {
		return this.#client.json(pathOf$1(answer), { method: "DELETE" });
	}
	list(query = {}, signal) {
		return this.#client.json("/feedback", {
			query,
			signal
		});
	}
	counts(query = {}, signal) {
		return this.#client.json("/feedback/counts", {
			query,
			signal
		});
	}
	/** Return the own ratings in a session, by the id of the answer. */
	async ownIn(session, signal) {
		const found = /* @__PURE__ */ new Map();
		let cursor;
		for (let pages = 0; pages < MAX_OWN_PAGES; pages += 1) {
			const page = await this.list({
				session_id: session,
				own: true,
				limit: 200,
				cursor
			}, signal);
			for (const one of page.feedback) found.set(one.answer_id, one);
			cursor = page.next_cursor;
			if (cursor === void 0) break;
		}
		return found;
	}
};
function pathOf$1(answer) {
	return `/breadcrumbs/${encodeURIComponent(answer)}/feedback`;
}
//#endregion
//#region client/src/sessions.ts
/** Deleting a session deletes its breadcrumbs one by one, so it gets a longer timeout. */
var DELETE_TIMEOUT_FACTOR = 10;
var Sessions = class {
	#client;
	constructor(client) {
		this.#client = client;
	}
	list(query = {}, signal) {
		return this.#client.json("/sessions", {
			query,
			signal
		});
	}
	create(session = {}, key = newId()) {
		return this.#client.json("/sessions", {
			body: session,
			headers: { "idempotency-key": key }
		});
	}
	read(id, signal) {
		return this.#client.json(pathOf(id), { signal });
	}
	/** Change a session. A model of null returns to the models of the agents. An agent of null lets all agents answer. */
	change(id, changes) {
		return this.#client.json(pathOf(id), {
			method: "PATCH",
			body: changes
		});
	}
	remove(id) {
		const timeoutMs = DELETE_TIMEOUT_FACTOR * this.#client.timeoutMs;
		return this.#client.json(pathOf(id), {
			method: "DELETE",
			timeoutMs
		});
	}
	/** Post a message. The first message of a session creates it. */
	async say(id, message, key, context) {
		return withDefaults((await this.#client.json(pathOf(id, "/messages"), {
			body: context ? {
				message,
				context
			} : { message },
			headers: { "idempotency-key": key }
		})).message);
	}
	async messages(id, query = {}, signal) {
		const page = await this.#client.json(pathOf(id, "/messages"), {
			query,
			signal
		});
		return {
			...page,
			messages: page.messages.map(withDefaults)
		};
	}
	/** Search titles and messages. The server searches a part per request: continue with the cursor until the end. */
	search(text, query = {}, signal) {
		return this.#client.json("/sessions", {
			query: {
				...query,
				q: text
			},
			signal
		});
	}
	/**
	* Copy a session, up to and including `message_id`, or only what is before `before_id`. A second call with the same
	* key returns the same fork.
	*/
	fork(id, body = {}, key = newId()) {
		return this.#client.json(pathOf(id, "/fork"), {
			body,
			headers: { "idempotency-key": key }
		});
	}
	/** Run the failed turn of a message again, by default the newest. */
	retry(id, messageId) {
		return this.#client.json(pathOf(id, "/retry"), { body: messageId === void 0 ? {} : { message_id: messageId } });
	}
	/** Stop the answers in progress in a session. */
	cancel(id, key = newId()) {
		return this.#client.breadcrumbs.create({
			schema_name: "agent.cancel.v1",
			title: "Cancel",
			tags: ["agent:cancel", `session:${id}`],
			context: {}
		}, key);
	}
};
function pathOf(id, more = "") {
	return `/sessions/${encodeURIComponent(id)}${more}`;
}
function withDefaults(message) {
	return {
		text: "",
		context: {},
		...message
	};
}
//#endregion
//#region client/src/client.ts
/** HTTP client of one server. Failed requests throw an `ApiError`. */
var TIMEOUT_MS = 3e4;
var Client = class {
	server;
	breadcrumbs;
	sessions;
	feedback;
	#options;
	constructor(options = {}) {
		this.server = options.server ?? "";
		this.#options = options;
		this.breadcrumbs = new Breadcrumbs(this);
		this.sessions = new Sessions(this);
		this.feedback = new Ratings(this);
	}
	get timeoutMs() {
		return this.#options.timeoutMs ?? TIMEOUT_MS;
	}
	/** Send a request and return the body of the reply. */
	async json(path, options = {}) {
		return (await this.request(path, options)).data;
	}
	/** Send a request and return the body of the reply, and the response for its headers. */
	async request(path, options = {}) {
		const deadline = new AbortController();
		const timer = setTimeout(() => deadline.abort(), options.timeoutMs ?? this.timeoutMs);
		const signal = options.signal ? AbortSignal.any([options.signal, deadline.signal]) : deadline.signal;
		try {
			const response = await this.#send(path, {
				...options,
				signal
			});
			return {
				data: await this.#read(response),
				response
			};
		} catch (error) {
			if (options.signal?.aborted) throw error;
			throw this.#asApiError(error, deadline.signal.aborted ? "timeout" : "unreachable");
		} finally {
			clearTimeout(timer);
		}
	}
	/** Send a request without a timeout and return the response. Its body is a stream. */
	async open(path, options = {}) {
		try {
			return await this.#send(path, options);
		} catch (error) {
			if (options.signal?.aborted) throw error;
			throw this.#asApiError(error, "unreachable");
		}
	}
	/** Return the error for a reply that does not come from a Breadcrumbs server. */
	malformed(response) {
		return this.#error({
			kind: "malformed",
			server: this.server,
			status: response.status,
			statusText: response.statusText
		});
	}
	async #send(path, options) {
		const token = options.token ?? this.#token();
		const headers = new Headers(options.headers);
		if (token) headers.set("authorization", `Bearer ${token}`);
		const init = {
			...this.#options.fetchOptions,
			method: options.method ?? (options.body === void 0 ? "GET" : "POST"),
			headers,
			signal: options.signal ?? null
		};
		if (options.body !== void 0) {
			if (!headers.has("content-type")) headers.set("content-type", "application/json");
			init.body = JSON.stringify(options.body);
		}
		const response = await (this.#options.fetch ?? fetch)(this.server + withQuery(path, options.query), init);
		if (response.ok) return response;
		const error = this.#error(await readRefusal(this.server, response));
		if (error.status === 401 && !options.quiet) this.#options.onUnauthorized?.(error, token);
		throw error;
	}
	async #read(response) {
		if (!response.headers.get("content-type")?.includes("json")) throw this.malformed(response);
		try {
			return await response.json();
		} catch (error) {
			throw error instanceof SyntaxError ? this.malformed(response) : error;
		}
	}
	#token() {
		const { token = "" } = this.#options;
		return typeof token === "string" ? token : token();
	}
	#asApiError(error, kind) {
		if (error instanceof ApiError) return error;
		return this.#error({
			kind,
			server: this.server,
			status: 0,
			statusText: ""
		});
	}
	#error(failure) {
		return new ApiError((this.#options.describeFailure ?? describeFailure)(failure), failure);
	}
};
/** Add a query to a path. Undefined and empty parameters are omitted. */
function withQuery(path, query = {}) {
	const pairs = new URLSearchParams();
	for (const [name, value] of Object.entries(query)) {
		if (value === void 0 || value === "") continue;
		if (Array.isArray(value)) for (const one of value) pairs.append(name, one);
		else pairs.append(name, String(value));
	}
	return pairs.size ? `${path}?${pairs}` : path;
}
//#endregion
//#region client/src/tokens.ts
/** Return the claims of a token without checking its signature. Returns null for an API key. */
function tokenClaims(token) {
	const payload = /^[\w-]+\.([\w-]+)\.[\w-]+$/.exec(token)?.[1];
	if (payload === void 0) return null;
	try {
		const binary = atob(payload.replaceAll("-", "+").replaceAll("_", "/"));
		const bytes = Uint8Array.from(binary, (char) => char.charCodeAt(0));
		return JSON.parse(new TextDecoder().decode(bytes));
	} catch {
		return null;
	}
}
//#endregion
//#region client/src/transcript.ts
/** Complete conversations as Markdown or JSON. */
var PAGE = 200;
var RETRIES = 5;
/** Return all messages of a session, oldest first. Reads as many pages as needed. */
async function readAllMessages(sessions, id, signal) {
	const pages = [];
	let before;
	do {
		const query = before === void 0 ? { limit: PAGE } : {
			limit: PAGE,
			before
		};
		const page = await patiently(() => sessions.messages(id, query, signal));
		pages.push(page.messages);
		before = page.has_more ? page.before : void 0;
	} while (before !== void 0);
	return pages.reverse().flat();
}
/** Repeat a request that failed for a moment, such as one that exceeds the rate limit. */
async function patiently(request) {
	for (let attempt = 1;; attempt += 1) try {
		return await request();
	} catch (error) {
		if (!(error instanceof ApiError) || !error.isRetryable || attempt > RETRIES) throw error;
		const seconds = error.retryAfter ?? attempt;
		await new Promise((done) => setTimeout(done, seconds * 1e3));
	}
}
/** Return a conversation as a JSON document. */
function transcriptAsJson(session, messages) {
	return `${JSON.stringify({
		session,
		messages
	}, null, 2)}\n`;
}
/** Return a conversation as a Markdown document. */
function transcriptAsMarkdown(session, messages) {
	const title = oneLine(session.title || session.summary || session.id);
	const facts = [`Session: ${inCode(session.id)}`, `Created: ${session.created_at}`];
	return `${[...[`# ${title}`, facts.map((fact) => `- ${fact}`).join("\n")], ...messages.map(section)].join("\n\n")}\n`;
}
function section(message) {
	return `## ${speakerOf(message)} · ${message.created_at}\n\n${bodyOf(message)}`;
}
function speakerOf(message) {
	switch (message.role) {
		case "user": return "User";
		case "assistant": return message.agent_id ? `Agent ${inCode(message.agent_id)}` : "Agent";
		case "error": return "Error";
		case "tool": {
			const step = message.schema_name === "tool.request.v1" ? "Tool request" : "Tool response";
			const name = message.context["tool"];
			return typeof name === "string" ? `${step} ${inCode(name)}` : step;
		}
	}
}
function bodyOf(message) {
	if (message.role !== "tool") return message.text.trim();
	const { input, output, error } = message.context;
	const shown = input ?? output ?? error ?? message.text;
	return typeof shown === "string" ? fenced(shown, "") : fenced(JSON.stringify(shown, null, 2), "json");
}
/** Return a code block whose fence is longer than any in the text. */
function fenced(text, language) {
	const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), (run) => run[0].length));
	const fence = "`".repeat(longest + 1);
	return `${fence}${language}\n${text}\n${fence}`;
}
var oneLine = (text) => text.replace(/\s+/g, " ").trim();
var inCode = (text) => `\`${oneLine(text).replaceAll("`", "'")}\``;
var MAX_NAME_LENGTH = 80;
/** Return a file name for a session that all systems accept. */
function transcriptName(session, extension) {
	return `${[...(session.title || session.summary || session.id).replace(/[\u0000-\u001f\u007f<>:"/\\|?*]+/g, " ").replace(/\s+/g, " ").trim()].slice(0, MAX_NAME_LENGTH).join("").replace(/^\.+|[. ]+$/g, "") || "session"}.${extension}`;
}
//#endregion
//#region client/src/sse.ts
/** Parser of server-sent events. The text can arrive in pieces of any size. */
var SseParser = class {
	#rest = "";
	#event = "message";
	#data = [];
	#id;
	/** Add a piece of text and return the events that it completes. */
	feed(piece) {
		const lines = (this.#rest + piece).split("\n");
		this.#rest = lines.pop() ?? "";
		return lines.flatMap((line) => this.#takeLine(line.replace(/\r$/, "")));
	}
	#takeLine(line) {
		if (line === "") return this.#complete();
		const colon = line.indexOf(":");
		const name = colon < 0 ? line : line.slice(0, colon);
		const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
		if (name === "data") this.#data.push(value);
		else if (name === "event") this.#event = value;
		else if (name === "id") this.#id = value;
		return [];
	}
	#complete() {
		const completed = {
			event: this.#event,
			data: this.#data.join("\n"),
			id: this.#id
		};
		const isEmpty = this.#data.length === 0 && this.#id === void 0;
		this.#event = "message";
		this.#data = [];
		return isEmpty ? [] : [completed];
	}
};
//#endregion
//#region client/src/retries.ts
/** Return the delay before the next retry. It doubles with each failure, up to `longestMs`. */
function retryDelay({ firstMs, longestMs, jitter = .25 }, failures) {
	return Math.min(longestMs, firstMs * 2 ** failures) * (1 - jitter + 2 * jitter * Math.random());
}
/** A wait that ends after some time or when `end` is called. */
var Pause = class {
	#end = () => {};
	/** Wait for `ms`, or until `end` is called. */
	wait(ms) {
		return new Promise((resolve) => {
			const timer = ms === void 0 ? void 0 : setTimeout(resolve, ms);
			this.#end = () => {
				clearTimeout(timer);
				resolve();
			};
		});
	}
	end() {
		this.#end();
	}
};
//#endregion
//#region client/src/stream.ts
var BACKOFF = {
	firstMs: 400,
	longestMs: 1e4
};
var SILENCE_MS = 6e4;
var EventStream = class {
	#client;
	#handlers;
	#options;
	#end = new AbortController();
	#pause = new Pause();
	#query;
	#connection = new AbortController();
	#status = "connecting";
	#lastId;
	/** Whether the server rejected our position. The next connection then starts with new events. */
	#positionLost = false;
	#isSuspended = false;
	#failures = 0;
	constructor(client, query, handlers, options = {}) {
		this.#client = client;
		this.#query = query;
		this.#handlers = handlers;
		this.#options = options;
	}
	start() {
		this.#report({ status: "connecting" });
		this.#run();
	}
	stop() {
		this.#end.abort();
		this.#connection.abort();
		this.#pause.end();
	}
	/** Change the query. No event in between is lost. */
	follow(query) {
		this.#query = query;
		this.reconnect();
	}
	/** Retry now, without waiting for the delay. */
	retryNow() {
		this.#failures = 0;
		this.#pause.end();
	}
	/** Connect again immediately, even if the stream is open. */
	reconnect() {
		this.#isSuspended = false;
		if (this.#status !== "lost") this.#report({ status: "connecting" });
		this.#connection.abort();
		this.#pause.end();
	}
	/** Close the connection until `reconnect` is called. */
	suspend() {
		this.#isSuspended = true;
		this.#connection.abort();
		this.#pause.end();
	}
	async #run() {
		while (!this.#end.signal.aborted) {
			if (this.#isSuspended) {
				await this.#pause.wait();
				continue;
			}
			const connection = this.#connection = new AbortController();
			const state = await this.#connect(connection);
			if (connection.signal.aborted || state === void 0) continue;
			this.#report(state);
			await this.#waitAfter(state);
		}
	}
	/** Read the stream until it ends. Return the reason, or undefined to open it again immediately. */
	async #connect(connection) {
		try {
			await this.#follow(connection.signal);
			return {
				status: "lost",
				detail: "The server ended the connection."
			};
		} catch (error) {
			if (!(error instanceof ApiError)) return {
				status: "lost",
				detail: "The connection broke."
			};
			if (error.status === 422 && this.#lastId !== void 0) {
				this.#lastId = void 0;
				this.#positionLost = true;
				return;
			}
			return {
				status: error.isRetryable || this.#options.retryRefusals ? "lost" : "refused",
				detail: error.message,
				error
			};
		}
	}
	async #waitAfter({ status, error }) {
		if (status === "refused") {
			await this.#pause.wait();
			if (!this.#end.signal.aborted) this.#report({ status: "connecting" });
			return;
		}
		const delay = retryDelay(this.#options.backoff ?? BACKOFF, this.#failures++);
		await this.#pause.wait(error?.retryAfter === void 0 ? delay : error.retryAfter * 1e3);
	}
	async #follow(connection) {
		const silence = new AbortController();
		const watch = () => setTimeout(() => silence.abort(), this.#options.silenceMs ?? SILENCE_MS);
		let timer = watch();
		try {
			const signal = AbortSignal.any([connection, silence.signal]);
			const resumed = this.#lastId !== void 0;
			const reader = await this.#open(signal);
			let isOpen = resumed;
			if (resumed) this.#opened(true);
			const parser = new SseParser();
			for (;;) {
				const { value, done } = await reader.read();
				if (done) return;
				clearTimeout(timer);
				timer = watch();
				for (const message of parser.feed(value)) {
					this.#failures = 0;
					if (message.id) this.#lastId = message.id;
					if (!isOpen) this.#opened(false);
					isOpen = true;
					reportErrors(() => this.#dispatch(message));
				}
			}
		} finally {
			clearTimeout(timer);
		}
	}
	async #open(signal) {
		const accessToken = await this.#options.accessToken?.();
		signal.throwIfAborted();
		const response = await this.#client.open("/events/stream", {
			query: {
				...this.#query,
				last_event_id: this.#lastId,
				access_token: accessToken
			},
			headers: { accept: "text/event-stream" },
			signal,
			...accessToken !== void 0 && {
				token: "",
				quiet: true
			}
		});
		if (!response.body || !response.headers.get("content-type")?.startsWith("text/event-stream")) throw this.#client.malformed(response);
		return response.body.pipeThrough(new TextDecoderStream()).getReader();
	}
	#opened(resumed) {
		this.#report({ status: "open" });
		if (this.#positionLost) this.#handlers.onGap?.();
		this.#handlers.onOpen?.(resumed || this.#positionLost);
		this.#positionLost = false;
	}
	#dispatch({ event, data }) {
		if (!data) return;
		switch (event) {
			case "message": return this.#handlers.onEvent(JSON.parse(data));
			case "agent.response.delta": return this.#handlers.onDelta?.(JSON.parse(data));
			case "ping": return this.#handlers.onTime?.(JSON.parse(data).ts);
			case "gap": return this.#handlers.onGap?.();
		}
	}
	#report(state) {
		this.#status = state.status;
		this.#handlers.onState?.(state);
	}
};
/** Call a handler. Report its error as uncaught, so that it does not end the connection. */
function reportErrors(handle) {
	try {
		handle();
	} catch (error) {
		queueMicrotask(() => {
			throw error;
		});
	}
}
//#endregion
//#region client/src/outbox.ts
/**
* Queue of messages that the server has not confirmed. They are stored and sent in order until the server accepts or
* refuses them. Each has an idempotency key, so a retry never writes twice.
*/
/** Idempotency keys expire on the server after a day by default. One hour is a safety margin. */
var KEY_LIFETIME_MS = 828e5;
/** Whether a retry could write an entry twice, because its key has expired. */
function isKeyExpired({ tried, at }) {
	return tried && Date.now() - at > KEY_LIFETIME_MS;
}
var Outbox = class {
	#options;
	#end = new AbortController();
	#pause = new Pause();
	#failures = 0;
	constructor(options) {
		this.#options = options;
	}
	/** Add an entry. A synchronous storage has it when this returns. */
	async add(fields) {
		const entry = {
			key: newId(),
			...fields,
			at: Date.now(),
			tried: false
		};
		await this.#options.storage.change((entries) => [...entries, entry]);
		this.wake();
	}
	async remove(key) {
		await this.#options.storage.change((entries) => entries.filter((entry) => entry.key !== key));
		this.wake();
	}
	/** Change an entry, for example to send it again. */
	async update(key, fields) {
		await this.#mark(key, fields);
		this.wake();
	}
	/** Check the entries now. */
	wake() {
		this.#pause.end();
	}
	/** Check the entries now, and reset the delay between retries. */
	retryNow() {
		this.#failures = 0;
		this.wake();
	}
	stop() {
		this.#end.abort();
		this.wake();
	}
	/** Send entries until `stop` is called. Only one window may run this for a shared storage. */
	async run() {
		const { storage, isWaiting } = this.#options;
		while (!this.#end.signal.aborted) {
			const change = this.#pause.wait();
			const next = (await storage.read()).find((entry) => isWaiting(entry));
			if (next) await this.#process(next);
			else await change;
		}
	}
	async #process(entry) {
		const objection = this.#options.objection?.(entry);
		if (objection !== void 0) {
			await this.#mark(entry.key, this.#options.marks.refused(objection));
			return;
		}
		if (!entry.tried) await this.#mark(entry.key, { tried: true });
		try {
			const result = await this.#options.send(entry, this.#end.signal);
			this.#failures = 0;
			await this.#confirm(entry, result);
		} catch (error) {
			if (!this.#end.signal.aborted) await this.#handleError(entry, error);
		}
	}
	async #confirm(entry, result) {
		const { marks, onSent } = this.#options;
		if (marks.sent) await this.#mark(entry.key, marks.sent(result));
		onSent?.(entry, result);
		await this.remove(entry.key);
	}
	async #handleError(entry, error) {
		const { marks, backoff } = this.#options;
		if (!(error instanceof ApiError && error.isRetryable)) {
			this.#failures = 0;
			await this.#mark(entry.key, marks.refused(messageOf(error), error));
			return;
		}
		if (marks.waiting) await this.#mark(entry.key, marks.waiting(error.message));
		const delay = retryDelay(backoff, this.#failures++);
		await this.#pause.wait(error.retryAfter === void 0 ? delay : error.retryAfter * 1e3);
	}
	async #mark(key, fields) {
		await this.#options.storage.change((entries) => entries.map((entry) => entry.key === key ? {
			...entry,
			...fields
		} : entry));
	}
};
//#endregion
//#region client/src/markdown.ts
var MAX_DEPTH$1 = 8;
var MAX_COLUMNS = 64;
var MAX_ADDRESS_LENGTH = 1500;
/** A longer formula is plain text. */
var MAX_TEX_LENGTH = 2e3;
var MAX_TEX_LINES = 50;
var FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]{0,40})[^`\n]*$/;
var HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
var RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
var QUOTE = /^ {0,3}> ?/;
var ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+(.*))?$/;
var TASK = /^\[([ xX])\][ \t]+/;
var DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
var MATH = /^ {0,3}(\$\$|\\\[)/;
var MATH_ALONE = /^ {0,3}(?:\$\$|\\\[)[ \t]*$/;
/** Split the text into its top-level blocks. Appending text changes only the last block. */
function splitMarkdown(text) {
	const lines = text.replaceAll("\r\n", "\n").split("\n");
	const found = [];
	for (let at = 0; at < lines.length;) {
		const { end } = blockAt(lines, at, 0);
		const piece = lines.slice(at, end).join("\n");
		if (piece.trim()) found.push(piece);
		at = end;
	}
	return found;
}
function parseMarkdown(text) {
	return blocksOf(text.replaceAll("\r\n", "\n").split("\n"), 0);
}
function blocksOf(lines, depth) {
	const found = [];
	for (let at = 0; at < lines.length;) {
		const { block, end } = blockAt(lines, at, depth);
		if (block) found.push(block());
		at = end;
	}
	return found;
}
function blockAt(lines, at, depth) {
	const line = lines[at] ?? "";
	if (!line.trim()) return { end: at + 1 };
	const fence = FENCE.exec(line);
	if (fence) {
		const [, mark = "", language = ""] = fence;
		let stop = at + 1;
		while (stop < lines.length && !closes(lines[stop] ?? "", mark)) stop += 1;
		return {
			block: () => ({
				type: "code",
				language,
				code: lines.slice(at + 1, stop).join("\n")
			}),
			end: stop + 1
		};
	}
	const heading = HEADING.exec(line);
	if (heading) {
		const [, marks = "", words = ""] = heading;
		const text = words.replace(/[ \t]+#+[ \t]*$/, "");
		return {
			block: () => ({
				type: "heading",
				depth: marks.length,
				text: inline(text)
			}),
			end: at + 1
		};
	}
	if (RULE.test(line)) return {
		block: () => ({ type: "rule" }),
		end: at + 1
	};
	if (QUOTE.test(line) && depth < MAX_DEPTH$1) {
		let end = at + 1;
		while (end < lines.length && (QUOTE.test(lines[end] ?? "") || continues(lines[end] ?? ""))) end += 1;
		const quoted = () => lines.slice(at, end).map((other) => other.replace(QUOTE, ""));
		return {
			block: () => ({
				type: "quote",
				blocks: blocksOf(quoted(), depth + 1)
			}),
			end
		};
	}
	if (ITEM.test(line) && depth < MAX_DEPTH$1) return listAt(lines, at, depth);
	const math = MATH.test(line) ? mathAt(lines, at) : void 0;
	if (math) return math;
	if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "")) {
		const head = cells(line);
		if (cells(lines[at + 1] ?? "").length === head.length) return tableAt(lines, at, head);
	}
	let end = at + 1;
	while (end < lines.length && continues(lines[end] ?? "")) end += 1;
	const text = () => lines.slice(at, end).map((other) => other.trimStart()).join("\n").trimEnd();
	return {
		block: () => ({
			type: "paragraph",
			text: inline(text())
		}),
		end
	};
}
/**
* Return the formula that starts at a line, or undefined if the line belongs to a paragraph. A formula contains no blank
* line. Until its end is streamed it is a paragraph, because half a formula has errors.
*/
function mathAt(lines, at) {
	const [, opener = ""] = MATH.exec(lines[at] ?? "") ?? [];
	const closer = opener === "$$" ? "$$" : "\\]";
	const isAlone = MATH_ALONE.test(lines[at] ?? "");
	const own = [];
	let end = at;
	for (; end < lines.length && end - at < MAX_TEX_LINES; end += 1) {
		const text = (lines[end] ?? "").trim().slice(end === at ? opener.length : 0);
		if (end > at && text === "") break;
		const close = text.indexOf(closer);
		if (close < 0) {
			own.push(text);
			continue;
		}
		if (close !== text.length - closer.length) return void 0;
		const tex = [...own, text.slice(0, close)].join("\n").trim();
		return tex && tex.length <= MAX_TEX_LENGTH ? {
			block: () => ({
				type: "math",
				tex
			}),
			end: end + 1
		} : void 0;
	}
	if (!isAlone) return void 0;
	const source = lines.slice(at, end).join("\n");
	return {
		block: () => ({
			type: "paragraph",
			text: [source]
		}),
		end
	};
}
function closes(line, mark) {
	const text = line.trim();
	return text.length >= mark.length && text === (mark[0] ?? "").repeat(text.length);
}
/** Whether a line continues the paragraph above it. */
function continues(line) {
	return line.trim() !== "" && !FENCE.test(line) && !HEADING.test(line) && !RULE.test(line) && !QUOTE.test(line) && !ITEM.test(line) && !MATH_ALONE.test(line);
}
var indentOf = (line) => line.length - line.trimStart().length;
function listAt(lines, from, depth) {
	const first = ITEM.exec(lines[from] ?? "");
	const indent = first?.[1]?.length ?? 0;
	const isOrdered = (mark) => mark !== void 0 && mark.length > 1;
	const ordered = isOrdered(first?.[2]);
	const inside = [];
	let at = from;
	while (at < lines.length) {
		const item = ITEM.exec(lines[at] ?? "");
		if (!item || isOrdered(item[2]) !== ordered || RULE.test(lines[at] ?? "")) break;
		const width = (item[1]?.length ?? 0) + (item[2]?.length ?? 0) + 1;
		const own = [item[3] ?? ""];
		at += 1;
		for (let blank = false; at < lines.length; at += 1) {
			const line = lines[at] ?? "";
			if (!line.trim()) {
				blank = true;
				own.push("");
				continue;
			}
			if (!(indentOf(line) >= indent + 2 || !blank && continues(line))) break;
			blank = false;
			own.push(line.slice(Math.min(indentOf(line), width)));
		}
		inside.push(own);
	}
	const start = ordered ? Number.parseInt(first?.[2] ?? "1", 10) : null;
	return {
		block: () => ({
			type: "list",
			start,
			items: inside.map((own) => itemOf(own, depth))
		}),
		end: Math.max(at, from + 1)
	};
}
function itemOf(lines, depth) {
	const task = TASK.exec(lines[0] ?? "");
	if (!task) return { blocks: blocksOf(lines, depth + 1) };
	const words = [(lines[0] ?? "").slice(task[0].length), ...lines.slice(1)];
	return {
		done: task[1] !== " ",
		blocks: blocksOf(words, depth + 1)
	};
}
function tableAt(lines, at, head) {
	let end = at + 2;
	while (end < lines.length && continues(lines[end] ?? "")) end += 1;
	const rows = () => lines.slice(at + 2, end).map((line) => {
		const row = cells(line);
		return head.map((_, column) => inline(row[column] ?? ""));
	});
	const alignments = cells(lines[at + 1] ?? "").map(alignmentOf);
	return {
		block: () => ({
			type: "table",
			head: head.map((cell) => inline(cell)),
			rows: rows(),
			alignments
		}),
		end
	};
}
function alignmentOf(divider) {
	if (divider.endsWith(":")) return divider.startsWith(":") ? "center" : "right";
	return divider.startsWith(":") ? "left" : null;
}
function cells(line) {
	return line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/, MAX_COLUMNS).map((cell) => cell.trim().replaceAll("\\|", "|"));
}
var PUNCTUATION = /[\p{P}\p{S}]/u;
var SPECIAL = /[\\`*_~[\]!\n&h$]/g;
var ESCAPED = /[!-/:-@[-`{-~]/;
var DOLLAR = /[$`]/g;
var BARE = /https?:\/\/[^\s<>"`]+/y;
var REFERENCE = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]{2,8}));/y;
function inline(text) {
	const parts = [];
	const brackets = [];
	const ticks = tickRuns(text);
	const formulas = formulaFinder(text);
	let paren = 0;
	let plain = "";
	let at = 0;
	const flush = () => {
		if (plain) parts.push(plain);
		plain = "";
	};
	while (at < text.length) {
		SPECIAL.lastIndex = at;
		const next = SPECIAL.exec(text)?.index ?? text.length;
		plain += text.slice(at, next);
		at = next;
		const char = text[at];
		if (char === void 0) break;
		const formula = char === "$" || char === "\\" ? formulas(at) : void 0;
		if (formula) {
			flush();
			parts.push({
				type: "math",
				tex: formula.tex,
				display: formula.display
			});
			at = formula.end;
			continue;
		}
		if (char === "\\") {
			const escaped = text[at + 1] ?? "";
			if (ESCAPED.test(escaped)) {
				plain += escaped;
				at += 2;
				continue;
			}
		} else if (char === "`") {
			const run = runAt(text, at);
			const close = ticks.closing(run, at);
			if (close === void 0) {
				plain += "`".repeat(run);
				at += run;
			} else {
				flush();
				parts.push({
					type: "code",
					code: codeText(text.slice(at + run, close))
				});
				at = close + run;
			}
			continue;
		} else if (char === "\n") {
			plain = plain.trimEnd();
			flush();
			parts.push({ type: "break" });
			at += 1;
			continue;
		} else if (char === "*" || char === "_" || char === "~") {
			const length = runAt(text, at);
			if (char === "~" && length !== 2) plain += char.repeat(length);
			else {
				flush();
				parts.push(delimiter(text, at, char, length));
			}
			at += length;
			continue;
		} else if (char === "[" || char === "!" && text[at + 1] === "[") {
			flush();
			brackets.push({
				bracket: true,
				image: char === "!",
				part: parts.length
			});
			parts.push(char === "!" ? "![" : "[");
			at += char === "!" ? 2 : 1;
			continue;
		} else if (char === "]") {
			const opener = brackets.pop();
			const maybe = opener !== void 0 && text[at + 1] === "(";
			if (maybe && paren >= 0 && paren < at + 2) paren = text.indexOf(")", at + 2);
			const target = maybe && paren >= 0 && paren - at < MAX_ADDRESS_LENGTH ? targetAt(text, at + 2) : void 0;
			if (opener && target) {
				flush();
				const label = emphasised(parts.splice(opener.part).slice(1));
				parts.push(link(target.address, label));
				if (!opener.image) brackets.length = 0;
				at = target.end;
				continue;
			}
		} else if (char === "h") {
			BARE.lastIndex = at;
			const found = wordBefore(text, at) ? null : BARE.exec(text);
			if (found && brackets.length === 0) {
				const address = withoutTail(found[0]);
				if (safeAddress(address) !== null) {
					flush();
					parts.push(link(address, [address]));
					at += address.length;
					continue;
				}
			}
		} else if (char === "&") {
			REFERENCE.lastIndex = at;
			const found = REFERENCE.exec(text);
			const resolved = found && resolveReference(found);
			if (found && resolved) {
				plain += resolved;
				at += found[0].length;
				continue;
			}
		}
		plain += char;
		at += 1;
	}
	flush();
	return emphasised(parts);
}
function runAt(text, at) {
	let end = at;
	while (text[end] === text[at] && end < text.length) end += 1;
	return end - at;
}
/** Index all runs of backticks by length, so that finding the end of a code span takes constant time. */
function tickRuns(text) {
	const byLength = /* @__PURE__ */ new Map();
	for (const found of text.matchAll(/`+/g)) {
		const places = byLength.get(found[0].length) ?? [];
		places.push(found.index);
		byLength.set(found[0].length, places);
	}
	const passed = /* @__PURE__ */ new Map();
	return { closing(length, after) {
		const places = byLength.get(length) ?? [];
		let index = passed.get(length) ?? 0;
		while ((places[index] ?? Infinity) <= after) index += 1;
		passed.set(length, index);
		return places[index];
	} };
}
/**
* Return a function that finds the formula that starts at an index. `$` is ambiguous: it starts a formula only before
* and ends it only after a character that is not a space, and no digit follows the end, so that prices stay text.
*/
function formulaFinder(text) {
	let parenthesis = 0;
	const delimited = (from, stop, length, display) => {
		const tex = text.slice(from, stop).trim();
		return tex && stop - from <= MAX_TEX_LENGTH ? {
			tex,
			display,
			end: stop + length
		} : void 0;
	};
	const inDollars = (at) => {
		if (/[\w$]/.test(text[at - 1] ?? "")) return void 0;
		const mark = runAt(text, at);
		if (mark > 2) return void 0;
		const from = at + mark;
		DOLLAR.lastIndex = from;
		let stop = DOLLAR.exec(text)?.index ?? -1;
		while (stop > 0 && text[stop - 1] === "\\") stop = DOLLAR.exec(text)?.index ?? -1;
		if (stop < 0 || text[stop] !== "$" || runAt(text, stop) !== mark) return void 0;
		const isTight = (text[from] ?? " ").trim() !== "" && (text[stop - 1] ?? " ").trim() !== "";
		if (mark === 1 && (!isTight || /[\w]/.test(text[stop + 1] ?? ""))) return void 0;
		return delimited(from, stop, mark, mark === 2);
	};
	return (at) => {
		if (text[at] === "$") return inDollars(at);
		if (text[at + 1] !== "(") return void 0;
		if (parenthesis >= 0 && parenthesis < at + 2) parenthesis = text.indexOf("\\)", at + 2);
		return parenthesis < 0 ? void 0 : delimited(at + 2, parenthesis, 2, false);
	};
}
function codeText(code) {
	const line = code.replaceAll("\n", " ");
	return line.startsWith(" ") && line.endsWith(" ") && line.trim() ? line.slice(1, -1) : line;
}
function wordBefore(text, at) {
	return at > 0 && /[\w/]/.test(text[at - 1] ?? "");
}
/** Return a delimiter run, with the left- and right-flanking rules of CommonMark. */
function delimiter(text, at, mark, length) {
	const before = text[at - 1] ?? " ";
	const after = text[at + length] ?? " ";
	const space = (char) => char.trim() === "";
	const left = !space(after) && (!PUNCTUATION.test(after) || space(before) || PUNCTUATION.test(before));
	const right = !space(before) && (!PUNCTUATION.test(before) || space(after) || PUNCTUATION.test(after));
	const word = mark === "_";
	return {
		mark,
		count: length,
		length,
		opens: left && (!word || !right || PUNCTUATION.test(before)),
		closes: right && (!word || !left || PUNCTUATION.test(after))
	};
}
var isDelimiter = (part) => typeof part === "object" && "mark" in part;
/**
* Match opening and closing delimiters with the algorithm of CommonMark. `bottoms` keeps the time linear: openers that
* were searched without a match are not searched again.
*/
function emphasised(parts) {
	const out = [];
	const openers = [];
	const bottoms = /* @__PURE__ */ new Map();
	for (const part of parts) {
		if (!isDelimiter(part)) {
			out.push(part);
			continue;
		}
		const closer = { ...part };
		while (closer.closes && closer.count > 0) {
			const kind = `${closer.mark}${closer.opens}${closer.length % 3}`;
			const bottom = bottoms.get(kind) ?? 0;
			let top = openers.length - 1;
			while (top >= bottom && !matches(out[openers[top] ?? 0], closer)) top -= 1;
			if (top < bottom) {
				bottoms.set(kind, openers.length);
				break;
			}
			const place = openers[top] ?? 0;
			const opener = out[place];
			const used = closer.mark === "~" || opener.count >= 2 && closer.count >= 2 ? 2 : 1;
			const children = out.splice(place + 1).map(asText);
			openers.length = top + 1;
			for (const [name, height] of bottoms) bottoms.set(name, Math.min(height, openers.length));
			opener.count -= used;
			closer.count -= used;
			if (opener.count === 0) {
				out.pop();
				openers.pop();
			}
			out.push(...wrapped(closer.mark === "~" ? "del" : used === 2 ? "strong" : "em", children));
		}
		if (closer.count > 0) {
			if (closer.opens) openers.push(out.length);
			out.push(closer);
		}
	}
	return out.map(asText);
}
function matches(opener, closer) {
	if (opener === void 0 || !isDelimiter(opener) || opener.mark !== closer.mark) return false;
	if (!(opener.closes || closer.opens)) return true;
	return (opener.length + closer.length) % 3 !== 0 || opener.length % 3 === 0 && closer.length % 3 === 0;
}
function asText(part) {
	return isDelimiter(part) ? part.mark.repeat(part.count) : part;
}
var depthOf = (children) => children.reduce((most, child) => Math.max(most, typeof child === "object" && "depth" in child ? child.depth : 0), 0);
function wrapped(type, children) {
	const depth = depthOf(children) + 1;
	return depth > MAX_DEPTH$1 ? children : [{
		type,
		depth,
		children
	}];
}
function link(address, children) {
	return {
		type: "link",
		depth: depthOf(children) + 1,
		address,
		children
	};
}
/** Parse an address in parentheses. Its title, if any, is ignored. */
function targetAt(text, from) {
	let at = from;
	let open = 0;
	const limit = Math.min(text.length, from + MAX_ADDRESS_LENGTH);
	for (; at < limit; at += 1) {
		const char = text[at] ?? "";
		if (char.trim() === "" || char === "<") break;
		if (char === "(") open += 1;
		if (char === ")" && open-- === 0) break;
	}
	const address = text.slice(from, at);
	const title = /[ \t]+(?:"[^"\n]{0,200}"|'[^'\n]{0,200}')[ \t]*/y;
	title.lastIndex = at;
	at += title.exec(text)?.[0].length ?? 0;
	return address && text[at] === ")" ? {
		address,
		end: at + 1
	} : void 0;
}
/** Remove punctuation that follows an address in a sentence. */
function withoutTail(address) {
	let end = address.length;
	let surplus = 0;
	for (const char of address) surplus += char === ")" ? 1 : char === "(" ? -1 : 0;
	for (; end > 0; end -= 1) {
		const char = address[end - 1] ?? "";
		if (char === ")" && surplus > 0) surplus -= 1;
		else if (!/[.,;:!?'*_~\]]/.test(char)) break;
	}
	return address.slice(0, end);
}
/** Return an address of a web page or an email. Returns null for any other address. */
function safeAddress(address) {
	if (!URL.canParse(address)) return null;
	const url = new URL(address);
	return [
		"http:",
		"https:",
		"mailto:"
	].includes(url.protocol) ? url.href : null;
}
var NAMED = {
	amp: "&",
	lt: "<",
	gt: ">",
	quot: "\"",
	apos: "'",
	nbsp: "\xA0",
	copy: "©",
	hellip: "…",
	mdash: "—",
	ndash: "–",
	times: "×",
	rarr: "→",
	larr: "←",
	euro: "€",
	deg: "°"
};
/** Return the character of a character reference, or undefined if it is not valid. */
function resolveReference([, decimal, hex, name]) {
	if (name !== void 0) return Object.hasOwn(NAMED, name) ? NAMED[name] : void 0;
	const point = decimal !== void 0 ? Number(decimal) : Number.parseInt(hex ?? "", 16);
	return point > 0 && point <= 1114111 && !(point >= 55296 && point <= 57343) ? String.fromCodePoint(point) : void 0;
}
//#endregion
//#region client/src/tex-symbols.ts
var words = `
alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ mu μ nu ν
xi ξ omicron ο pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω
Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω
infty ∞ partial ∂ nabla ∇ hbar ℏ ell ℓ Re ℜ Im ℑ aleph ℵ emptyset ∅ varnothing ∅ forall ∀ exists ∃ nexists ∄ imath ı
jmath ȷ angle ∠ degree ° prime ′ top ⊤ bot ⊥ triangle △ square □ Box □ diamond ⋄ star ⋆ checkmark ✓ dagger † ddagger ‡
pm ± mp ∓ times × div ÷ cdot ⋅ ast ∗ circ ∘ bullet ∙ oplus ⊕ ominus ⊖ otimes ⊗ oslash ⊘ odot ⊙ cap ∩ cup ∪ sqcap ⊓
sqcup ⊔ vee ∨ lor ∨ wedge ∧ land ∧ setminus ∖ smallsetminus ∖ neg ¬ lnot ¬ wr ≀ amalg ⨿
leq ≤ le ≤ leqslant ⩽ geq ≥ ge ≥ geqslant ⩾ neq ≠ ne ≠ equiv ≡ approx ≈ sim ∼ simeq ≃ cong ≅ propto ∝ ll ≪ gg ≫ prec ≺
succ ≻ preceq ⪯ succeq ⪰ subset ⊂ supset ⊃ subseteq ⊆ supseteq ⊇ subsetneq ⊊ supsetneq ⊋ in ∈ notin ∉ ni ∋ perp ⊥
parallel ∥ mid ∣ nmid ∤ vdash ⊢ dashv ⊣ models ⊨ asymp ≍ doteq ≐ triangleq ≜ coloneqq ≔ lesssim ≲ gtrsim ≳ bowtie ⋈
to → rightarrow → leftarrow ← gets ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐ Leftrightarrow ⇔ implies ⟹ impliedby ⟸
iff ⟺ mapsto ↦ longmapsto ⟼ longrightarrow ⟶ longleftarrow ⟵ Longrightarrow ⟹ Longleftarrow ⟸ longleftrightarrow ⟷
Longleftrightarrow ⟺ uparrow ↑ downarrow ↓ updownarrow ↕ Uparrow ⇑ Downarrow ⇓ nearrow ↗ searrow ↘ swarrow ↙ nwarrow ↖
hookrightarrow ↪ hookleftarrow ↩ rightharpoonup ⇀ rightleftharpoons ⇌ rightsquigarrow ⇝ leadsto ⇝
sum ∑ prod ∏ coprod ∐ int ∫ iint ∬ iiint ∭ oint ∮ bigcap ⋂ bigcup ⋃ bigvee ⋁ bigwedge ⋀ bigoplus ⨁ bigotimes ⨂
bigodot ⨀ bigsqcup ⨆
ldots … dots … cdots ⋯ vdots ⋮ ddots ⋱ dotsc … dotsb ⋯ colon : therefore ∴ because ∵ % % $ $ & & # # _ _
lbrack [ rbrack ] lt < gt > pounds £ euro € S § P ¶ copyright © surd √ flat ♭ sharp ♯ natural ♮ clubsuit ♣ heartsuit ♥
spadesuit ♠ diamondsuit ♦ complement ∁ eth ð mho ℧ Finv Ⅎ beth ℶ gimel ℷ daleth ℸ blacksquare ■ lozenge ◊ qed ∎
`.trim().split(/\s+/);
/** Symbols by name. */
var SYMBOLS = Object.fromEntries(words.flatMap((name, index) => index % 2 === 0 ? [[name, words[index + 1] ?? ""]] : []));
/** Operators with scripts above and below. */
var LIMIT_OPERATORS = /* @__PURE__ */ new Set("∑∏∐⋂⋃⋁⋀⨁⨂⨀⨆");
var FUNCTIONS = new Set("sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan log ln lg exp deg dim ker hom arg".split(" "));
/** Functions with scripts below, and their texts. */
var LIMIT_FUNCTIONS = {
	lim: "lim",
	max: "max",
	min: "min",
	sup: "sup",
	inf: "inf",
	det: "det",
	gcd: "gcd",
	Pr: "Pr",
	limsup: "lim sup",
	liminf: "lim inf",
	argmax: "arg max",
	argmin: "arg min"
};
var SPACES = {
	",": "0.1667em",
	thinspace: "0.1667em",
	":": "0.2222em",
	">": "0.2222em",
	medspace: "0.2222em",
	";": "0.2778em",
	thickspace: "0.2778em",
	"!": "-0.1667em",
	" ": "0.3333em",
	enspace: "0.5em",
	quad: "1em",
	qquad: "2em"
};
/** Return a converter to letters and digits of Unicode's mathematical alphabets. `exceptions` exist elsewhere. */
function alphabet(upper, lower, digits = 0, exceptions = {}) {
	return (char) => {
		const point = char.codePointAt(0) ?? 0;
		if (Object.hasOwn(exceptions, char)) return exceptions[char] ?? char;
		if (char >= "A" && char <= "Z") return String.fromCodePoint(upper + point - 65);
		if (char >= "a" && char <= "z") return lower ? String.fromCodePoint(lower + point - 97) : char;
		if (char >= "0" && char <= "9") return digits ? String.fromCodePoint(digits + point - 48) : char;
		return char;
	};
}
var script = alphabet(119964, 119990, 0, {
	B: "ℬ",
	E: "ℰ",
	F: "ℱ",
	H: "ℋ",
	I: "ℐ",
	L: "ℒ",
	M: "ℳ",
	R: "ℛ",
	e: "ℯ",
	g: "ℊ",
	o: "ℴ"
});
var bold = alphabet(119808, 119834, 120782);
var doubleStruck = alphabet(120120, 120146, 120792, {
	C: "ℂ",
	H: "ℍ",
	N: "ℕ",
	P: "ℙ",
	Q: "ℚ",
	R: "ℝ",
	Z: "ℤ"
});
var fraktur = alphabet(120068, 120094, 0, {
	C: "ℭ",
	H: "ℌ",
	I: "ℑ",
	R: "ℜ",
	Z: "ℨ"
});
var same = (char) => char;
/** Converters of characters, by the command that selects the alphabet. */
var ALPHABETS = {
	mathbf: bold,
	boldsymbol: bold,
	bm: bold,
	mathbb: doubleStruck,
	Bbb: doubleStruck,
	mathcal: script,
	mathscr: script,
	mathfrak: fraktur,
	frak: fraktur,
	mathsf: alphabet(120224, 120250, 120802),
	mathtt: alphabet(120432, 120458, 120822),
	mathrm: same,
	mathit: same,
	mathnormal: same,
	mathop: same,
	mathbin: same,
	mathrel: same,
	mathord: same,
	mathopen: same,
	mathclose: same
};
//#endregion
//#region client/src/tex.ts
/**
* Converts formulas from TeX to MathML, as a tree of elements. It supports the commands that are common in chat answers:
* fractions, roots, scripts, accents, delimiters, alphabets, matrices and aligned equations. It has no macros.
*
* The input is not trusted: the depth of the tree is limited, the number of elements is proportional to the length of
* the formula, and no command can set a link, a style or an attribute. A formula with an unknown command or an error
* has no tree, and its source is shown.
*/
/** Each group and each command is one level. */
var MAX_DEPTH = 60;
/** Return the `math` element of a formula, or null if the formula cannot be converted. */
function parseTex(tex, display) {
	try {
		const body = new TexParser(tex).formula();
		return make("math", {
			display: display ? "block" : "inline",
			alttext: tex
		}, [body]);
	} catch (error) {
		if (error instanceof TexError) return null;
		throw error;
	}
}
var TexError = class extends Error {};
function make(tag, attributes = {}, children = []) {
	return {
		tag,
		attributes,
		children
	};
}
var operator = (text, attributes = {}) => make("mo", attributes, [text]);
var fence = (text) => operator(text, {
	fence: "true",
	stretchy: "true"
});
var space = (width) => make("mspace", { width });
var row = (children) => children.length === 1 && children[0] || make("mrow", {}, children);
var TOKEN = /\\(?:(?:operatorname|tag)\*|[a-zA-Z]+|[^])|\d+(?:\.\d+)?|[^]/uy;
var CELL_ENDS = /* @__PURE__ */ new Set([
	"",
	"&",
	"\\\\",
	"\\cr",
	"}",
	"\\end",
	"\\right"
]);
/** Operators with their own character in MathML. */
var CHARACTERS = {
	"-": "−",
	"*": "∗",
	"'": "′",
	"`": "‘"
};
var FENCES = "()[]|/";
var DELIMITERS = {
	"\\{": "{",
	"\\}": "}",
	"\\lbrace": "{",
	"\\rbrace": "}",
	"\\langle": "⟨",
	"\\rangle": "⟩",
	"\\lfloor": "⌊",
	"\\rfloor": "⌋",
	"\\lceil": "⌈",
	"\\rceil": "⌉",
	"\\vert": "|",
	"\\lvert": "|",
	"\\rvert": "|",
	"\\|": "‖",
	"\\Vert": "‖",
	"\\lVert": "‖",
	"\\rVert": "‖",
	"\\uparrow": "↑",
	"\\downarrow": "↓",
	"\\backslash": "\\",
	".": "",
	"<": "⟨",
	">": "⟩"
};
var ACCENTS = {
	hat: "^",
	widehat: "^",
	bar: "‾",
	overline: "‾",
	vec: "→",
	overrightarrow: "→",
	tilde: "~",
	widetilde: "~",
	dot: "˙",
	ddot: "¨",
	check: "ˇ",
	breve: "˘",
	acute: "´",
	grave: "`",
	mathring: "˚",
	overbrace: "⏞",
	overleftarrow: "←"
};
var UNDER_ACCENTS = {
	underline: "_",
	underbrace: "⏟"
};
var STRETCHED = /* @__PURE__ */ new Set([
	"widehat",
	"overline",
	"overrightarrow",
	"widetilde",
	"overbrace",
	"overleftarrow",
	"underline",
	"underbrace"
]);
var BIG = {
	big: "1.2em",
	Big: "1.8em",
	bigg: "2.4em",
	Bigg: "3em"
};
var MATRICES = {
	matrix: ["", ""],
	smallmatrix: ["", ""],
	array: ["", ""],
	pmatrix: ["(", ")"],
	bmatrix: ["[", "]"],
	Bmatrix: ["{", "}"],
	vmatrix: ["|", "|"],
	Vmatrix: ["‖", "‖"],
	cases: ["{", ""],
	rcases: ["", "}"]
};
var ALIGNED = /* @__PURE__ */ new Set([
	"aligned",
	"align",
	"align*",
	"split",
	"alignat",
	"alignat*",
	"eqnarray",
	"eqnarray*"
]);
var CENTERED = /* @__PURE__ */ new Set([
	"gather",
	"gather*",
	"gathered",
	"equation",
	"equation*",
	"multline",
	"multline*"
]);
/** Commands that only change the style, which is left to the browser. */
var IGNORED = /* @__PURE__ */ new Set([
	"displaystyle",
	"textstyle",
	"scriptstyle",
	"scriptscriptstyle",
	"nonumber",
	"notag",
	"relax",
	"allowbreak",
	"middle",
	"hline",
	"rm",
	"bf",
	"it"
]);
var TexParser = class {
	#tex;
	#at = 0;
	#depth = 0;
	constructor(tex) {
		this.#tex = tex;
	}
	formula() {
		const rows = this.#rows();
		if (this.#at < this.#tex.length) throw new TexError("text after the end of the formula");
		return rows.length === 1 && rows[0]?.length === 1 ? row(rows[0][0] ?? []) : table(rows, "aligned");
	}
	#skipSpaces() {
		for (;;) {
			while (/\s/.test(this.#tex[this.#at] ?? "x")) this.#at += 1;
			if (this.#tex[this.#at] !== "%") return;
			while (this.#at < this.#tex.length && this.#tex[this.#at] !== "\n") this.#at += 1;
		}
	}
	/** Return the next token without consuming it. Empty at the end. */
	#peek() {
		this.#skipSpaces();
		TOKEN.lastIndex = this.#at;
		return TOKEN.exec(this.#tex)?.[0] ?? "";
	}
	#take() {
		const token = this.#peek();
		this.#at += token.length;
		return token;
	}
	#takeIf(token) {
		if (this.#peek() !== token) return false;
		this.#at += token.length;
		return true;
	}
	#expect(token) {
		if (!this.#takeIf(token)) throw new TexError(`expected ${token}`);
	}
	/** Return the text in braces without parsing it. */
	#rawArgument() {
		this.#expect("{");
		const from = this.#at;
		for (let open = 1; this.#at < this.#tex.length; this.#at += 1) {
			const char = this.#tex[this.#at];
			if (char === "\\") this.#at += 1;
			else if (char === "{") open += 1;
			else if (char === "}" && --open === 0) return this.#tex.slice(from, this.#at++);
		}
		throw new TexError("missing }");
	}
	/** Parse rows separated by `\\`, each with cells separated by `&`, up to a token that ends them. */
	#rows() {
		const rows = [[this.#cell()]];
		for (;;) {
			const current = rows[rows.length - 1] ?? [];
			if (this.#takeIf("&")) current.push(this.#cell());
			else if (this.#takeIf("\\\\") || this.#takeIf("\\cr")) {
				if (this.#tex[this.#at] === "[") this.#at = this.#tex.indexOf("]", this.#at) + 1 || this.#tex.length;
				rows.push([this.#cell()]);
			} else {
				const last = rows[rows.length - 1];
				if (rows.length > 1 && last?.length === 1 && last[0]?.length === 0) rows.pop();
				return rows;
			}
		}
	}
	#cell() {
		return this.#nested(() => {
			const found = [];
			while (!CELL_ENDS.has(this.#peek())) found.push(...this.#scripted());
			return found;
		});
	}
	#nested(parse) {
		if (++this.#depth > MAX_DEPTH) throw new TexError("nested too deeply");
		const found = parse();
		this.#depth -= 1;
		return found;
	}
	/** Parse one argument: a group in braces, or a single token. */
	#argument() {
		if (this.#takeIf("{")) return this.#groupRest();
		if (!/^\d/.test(this.#peek())) return row(this.#atom().nodes);
		return make("mn", {}, [this.#tex[this.#at++] ?? ""]);
	}
	#groupRest() {
		const inside = this.#cell();
		this.#expect("}");
		return row(inside);
	}
	/** Parse an atom with its scripts. */
	#scripted() {
		const token = this.#peek();
		const atom = token === "^" || token === "_" ? { nodes: [make("mrow")] } : this.#atom();
		const base = atom.nodes.at(-1);
		if (base === void 0) return [];
		let above;
		let below;
		let isBeside = !atom.hasLimits;
		for (;;) if (this.#takeIf("\\limits")) isBeside = false;
		else if (this.#takeIf("\\nolimits")) isBeside = true;
		else if (this.#takeIf("_")) below = joined(below, this.#argument());
		else if (this.#takeIf("^")) above = joined(above, this.#argument());
		else if (this.#takeIf("'")) above = joined(above, operator("′"));
		else break;
		const node = withScripts(base, below, above, isBeside);
		const after = atom.isFunction && /^(?:[\p{L}\d]|\\[a-zA-Z])/u.test(this.#peek()) ? [space("0.1667em")] : [];
		return [
			...atom.nodes.slice(0, -1),
			node,
			...after
		];
	}
	/** Parse an atom. Most have one node, and scripts belong to the last one. */
	#atom() {
		return this.#nested(() => {
			const token = this.#take();
			if (token === "") throw new TexError("missing argument");
			if (token.startsWith("\\")) return this.#command(token);
			return { nodes: token === "{" ? [this.#groupRest()] : characters(token) };
		});
	}
	#command(token) {
		const name = token.slice(1);
		if (Object.hasOwn(SPACES, name)) return { nodes: [space(SPACES[name] ?? "0")] };
		if (Object.hasOwn(DELIMITERS, token)) return { nodes: [operator(DELIMITERS[token] ?? "", { stretchy: "false" })] };
		if (FUNCTIONS.has(name)) return {
			nodes: [make("mi", {}, [name])],
			isFunction: true
		};
		if (Object.hasOwn(LIMIT_FUNCTIONS, name)) return {
			nodes: [operator(LIMIT_FUNCTIONS[name] ?? name, {
				movablelimits: "true",
				form: "prefix"
			})],
			hasLimits: true
		};
		if (Object.hasOwn(SYMBOLS, name)) {
			const text = SYMBOLS[name] ?? "";
			return {
				nodes: [symbol(text)],
				hasLimits: LIMIT_OPERATORS.has(text)
			};
		}
		if (Object.hasOwn(ALPHABETS, name)) return { nodes: [inAlphabet(this.#argument(), name)] };
		if (IGNORED.has(name)) return { nodes: [make("mrow")] };
		return this.#structure(name);
	}
	#structure(name) {
		switch (name) {
			case "frac":
			case "dfrac":
			case "tfrac":
			case "cfrac": return one(make("mfrac", {}, [this.#argument(), this.#argument()]));
			case "binom":
			case "dbinom":
			case "tbinom": {
				const numbers = make("mfrac", { linethickness: "0" }, [this.#argument(), this.#argument()]);
				return one(make("mrow", {}, [
					fence("("),
					numbers,
					fence(")")
				]));
			}
			case "sqrt": return one(this.#root());
			case "text":
			case "textrm":
			case "textbf":
			case "textit":
			case "texttt":
			case "textsf":
			case "textnormal":
			case "mbox":
			case "hbox": return one(make("mtext", {}, [plainText(this.#rawArgument())]));
			case "operatorname": return {
				...one(make("mi", {}, [plainText(this.#rawArgument())])),
				isFunction: true
			};
			case "operatorname*": return {
				nodes: [operator(plainText(this.#rawArgument()), {
					movablelimits: "true",
					form: "prefix"
				})],
				hasLimits: true
			};
			case "overset":
			case "stackrel": {
				const above = this.#argument();
				return one(make("mover", {}, [this.#argument(), above]));
			}
			case "underset": {
				const below = this.#argument();
				return one(make("munder", {}, [this.#argument(), below]));
			}
			case "xrightarrow":
			case "xleftarrow": return one(make("mover", {}, [operator(name === "xrightarrow" ? "→" : "←", { stretchy: "true" }), this.#argument()]));
			case "substack":
				this.#expect("{");
				return one(this.#tableUpTo("}", "gathered"));
			case "boxed": return one(make("mrow", { class: "boxed" }, [this.#argument()]));
			case "phantom": return one(make("mphantom", {}, [this.#argument()]));
			case "pmod": return { nodes: [
				space("1em"),
				make("mtext", {}, ["(mod "]),
				this.#argument(),
				make("mtext", {}, [")"])
			] };
			case "bmod":
			case "mod": return { nodes: [
				space("0.2222em"),
				make("mi", {}, ["mod"]),
				space("0.2222em")
			] };
			case "tag":
			case "tag*": return { nodes: [space("2em"), make("mtext", {}, [`(${plainText(this.#rawArgument())})`])] };
			case "label":
			case "color":
				this.#rawArgument();
				return one(make("mrow"));
			case "textcolor":
				this.#rawArgument();
				return one(this.#argument());
			case "not": return one(negated(this.#argument()));
			case "left": return one(this.#fenced());
			case "begin": return one(this.#environment());
		}
		return this.#decoration(name);
	}
	/** Parse an accent, or a delimiter of a fixed size. */
	#decoration(name) {
		const stretchy = STRETCHED.has(name) ? "true" : "false";
		if (Object.hasOwn(ACCENTS, name)) {
			const mark = operator(ACCENTS[name] ?? "", { stretchy });
			return {
				nodes: [make("mover", { accent: "true" }, [this.#argument(), mark])],
				hasLimits: name === "overbrace"
			};
		}
		if (Object.hasOwn(UNDER_ACCENTS, name)) {
			const mark = operator(UNDER_ACCENTS[name] ?? "", { stretchy });
			const isBrace = name === "underbrace";
			return {
				nodes: [make("munder", { accentunder: "true" }, [this.#argument(), mark])],
				hasLimits: isBrace
			};
		}
		const size = /^([bB]igg?)[lrm]?$/.exec(name)?.[1];
		if (size !== void 0) {
			const height = BIG[size] ?? "1em";
			return one(operator(this.#delimiter(), {
				stretchy: "true",
				minsize: height,
				maxsize: height
			}));
		}
		throw new TexError(`unknown command ${name}`);
	}
	#root() {
		if (!this.#takeIf("[")) return make("msqrt", {}, [this.#argument()]);
		const index = [];
		while (!this.#takeIf("]")) {
			if (this.#peek() === "" || this.#peek() === "}") throw new TexError("missing ]");
			index.push(...this.#scripted());
		}
		return make("mroot", {}, [this.#argument(), row(index)]);
	}
	#delimiter() {
		const token = this.#take();
		if (Object.hasOwn(DELIMITERS, token)) return DELIMITERS[token] ?? "";
		if (token !== "" && FENCES.includes(token)) return token;
		throw new TexError(`not a delimiter: ${token}`);
	}
	#fenced() {
		const open = this.#delimiter();
		const inside = this.#cell();
		this.#expect("\\right");
		const close = this.#delimiter();
		return make("mrow", {}, [
			...open ? [fence(open)] : [],
			...inside,
			...close ? [fence(close)] : []
		]);
	}
	#environment() {
		const name = this.#rawArgument();
		if (name === "array" || name.startsWith("alignat")) this.#rawArgument();
		const [open, close] = Object.hasOwn(MATRICES, name) && MATRICES[name] || ["", ""];
		if (!Object.hasOwn(MATRICES, name) && !ALIGNED.has(name) && !CENTERED.has(name)) throw new TexError(`unknown environment ${name}`);
		const kind = ALIGNED.has(name) ? "aligned" : name.endsWith("cases") ? "cases" : "matrix";
		const found = this.#tableUpTo("\\end", kind);
		if (this.#rawArgument() !== name) throw new TexError(`missing \\end{${name}}`);
		return make("mrow", {}, [
			...open ? [fence(open)] : [],
			found,
			...close ? [fence(close)] : []
		]);
	}
	#tableUpTo(end, kind) {
		const rows = this.#rows();
		this.#expect(end);
		return table(rows, kind);
	}
};
var one = (node) => ({ nodes: [node] });
function table(rows, kind) {
	const alignment = (column) => {
		if (kind === "cases") return { class: "align-left" };
		return kind === "aligned" ? { class: column % 2 === 0 ? "align-right" : "align-left" } : {};
	};
	return make("mtable", kind === "aligned" ? {
		class: "aligned",
		displaystyle: "true"
	} : {}, rows.map((cells) => make("mtr", {}, cells.map((cell, column) => make("mtd", alignment(column), cell)))));
}
function characters(token) {
	if (/^\d/.test(token)) return [make("mn", {}, [token])];
	if (/^\p{L}/u.test(token)) return [make("mi", {}, [token])];
	if (token === "~") return [space("0.3333em")];
	if ("}^_&#".includes(token)) throw new TexError(`unexpected ${token}`);
	return [operator(CHARACTERS[token] ?? token, FENCES.includes(token) ? { stretchy: "false" } : {})];
}
function symbol(text) {
	return /^[\p{L}∞∅∂∇ℏ…∠°]/u.test(text) ? make("mi", {}, [text]) : operator(text);
}
function joined(before, more) {
	return before === void 0 ? more : make("mrow", {}, [before, more]);
}
function withScripts(base, below, above, isBeside) {
	if (below && above) return make(isBeside ? "msubsup" : "munderover", {}, [
		base,
		below,
		above
	]);
	if (below) return make(isBeside ? "msub" : "munder", {}, [base, below]);
	if (above) return make(isBeside ? "msup" : "mover", {}, [base, above]);
	return base;
}
function negated(node) {
	const [text] = node.children;
	return typeof text === "string" ? {
		...node,
		children: [`${text}\u0338`]
	} : node;
}
/** Replace letters and digits by those of a mathematical alphabet. */
function inAlphabet(node, name) {
	const convert = ALPHABETS[name];
	const isUpright = name === "mathrm";
	const parts = node.tag === "mrow" ? node.children : [node];
	const isWord = parts.every((part) => typeof part === "object" && ["mi", "mn"].includes(part.tag));
	if (isUpright && isWord) return make("mi", { mathvariant: "normal" }, [parts.flatMap((part) => typeof part === "object" ? part.children : []).join("")]);
	const children = node.children.map((child) => typeof child === "object" ? inAlphabet(child, name) : [...child].map((char) => convert?.(char) ?? char).join(""));
	return {
		...node,
		children
	};
}
/** Return a text argument without the markup that it can contain. */
function plainText(text) {
	return text.replace(/\\([&%$#_{} ])/g, "$1").replaceAll("~", "\xA0").replace(/^ | $/g, "\xA0");
}
//#endregion
//#region client/src/markdown-elements.ts
/**
* Renders a Markdown tree as elements of any kind, such as DOM nodes or nodes of a framework. It never writes HTML, so
* none can be injected.
*/
/** Headings in a message start at `h3`, because the page around it uses `h1` and `h2`. */
var HEADING_OFFSET = 2;
function renderMarkdown(blocks, factory) {
	return blocks.map((block) => renderBlock(block, factory));
}
function renderBlock(block, factory) {
	const { element } = factory;
	switch (block.type) {
		case "paragraph": return element("p", {}, renderInline(block.text, factory));
		case "heading": return element(`h${Math.min(6, block.depth + HEADING_OFFSET)}`, {}, renderInline(block.text, factory));
		case "code": return factory.codeBlock(block.language, block.code);
		case "quote": return element("blockquote", {}, renderMarkdown(block.blocks, factory));
		case "list": {
			const items = block.items.map((item) => element("li", {}, renderItem(item, factory)));
			return block.start === null ? element("ul", {}, items) : element("ol", { start: `${block.start}` }, items);
		}
		case "table": return renderTable(block, factory);
		case "math": return element("p", { class: "formula" }, [renderFormula(block.tex, true, factory)]);
		case "rule": return element("hr", {}, []);
	}
}
/** Render a list item. Its first paragraph is inline, next to the list marker. */
function renderItem({ done, blocks }, factory) {
	const [first, ...rest] = blocks;
	const text = first?.type === "paragraph" ? renderInline(first.text, factory) : [];
	const below = first?.type === "paragraph" ? rest : blocks;
	return [
		...renderTask(done, factory),
		...text,
		...renderMarkdown(below, factory)
	];
}
function renderTask(done, { element }) {
	if (done === void 0) return [];
	return [element("span", { "aria-hidden": "true" }, [done ? "☑ " : "☐ "]), element("span", { class: "unseen" }, [done ? "done: " : "to do: "])];
}
/** Render a formula, or its source if it cannot be converted. */
function renderFormula(tex, display, factory) {
	const { mathElement } = factory;
	const math = mathElement && parseTex(tex, display);
	if (!mathElement || !math) return factory.element("code", { class: "tex" }, [tex]);
	const render = ({ tag, attributes, children }) => mathElement(tag, attributes, children.map((child) => typeof child === "string" ? child : render(child)));
	return render(math);
}
function renderTable({ head, rows, alignments }, factory) {
	const { element } = factory;
	const aligned = (column) => alignments[column] ? { class: `align-${alignments[column]}` } : {};
	const renderRow = (tag, cells) => element("tr", {}, cells.map((cell, column) => element(tag, aligned(column), renderInline(cell, factory))));
	return element("div", {
		class: "scroll",
		tabindex: "0",
		role: "region",
		"aria-label": "Table"
	}, [element("table", {}, [element("thead", {}, [renderRow("th", head)]), element("tbody", {}, rows.map((row) => renderRow("td", row)))])]);
}
function renderInline(parts, factory) {
	return parts.flatMap((part) => renderPart(part, factory));
}
function renderPart(part, factory) {
	if (typeof part === "string") return [part];
	switch (part.type) {
		case "strong":
		case "em":
		case "del": return [factory.element(part.type, {}, renderInline(part.children, factory))];
		case "code": return [factory.element("code", {}, [part.code])];
		case "math": return [renderFormula(part.tex, part.display, factory)];
		case "break": return [factory.element("br", {}, [])];
		case "link": return renderLink(part, factory);
	}
}
function renderLink(link, factory) {
	const label = renderInline(link.children, factory);
	const address = safeAddress(link.address);
	if (address === null) return factory.unsafeLink(link, label);
	const attributes = {
		href: address,
		title: address,
		target: "_blank",
		rel: "noopener noreferrer nofollow"
	};
	return [factory.element("a", attributes, label)];
}
//#endregion
//#region client/src/highlight.ts
/** Longer code is not highlighted, because each token becomes an element. */
var MAX_HIGHLIGHTED_LENGTH = 2e4;
var MAX_TOKENS = 4e3;
/** Return the tokens of a text. Their texts joined are the code. */
function highlight(code, language) {
	const grammar = code.length > 2e4 ? void 0 : grammarOf(language);
	if (grammar === void 0) return [{ text: code }];
	const tokens = [];
	let plain = 0;
	for (const found of code.matchAll(grammar.pattern)) {
		const kind = kindOf(found, grammar);
		if (kind === void 0) continue;
		if (tokens.length >= MAX_TOKENS) break;
		if (found.index > plain) tokens.push({ text: code.slice(plain, found.index) });
		tokens.push({
			kind,
			text: found[0]
		});
		plain = found.index + found[0].length;
	}
	if (plain < code.length) tokens.push({ text: code.slice(plain) });
	return tokens;
}
function kindOf(found, grammar) {
	const word = found.groups?.["word"];
	if (word === void 0) return grammar.kinds.find((kind) => found.groups?.[kind] !== void 0);
	const name = grammar.ignoresCase ? word.toLowerCase() : word;
	if (grammar.keywords.has(name)) return "keyword";
	if (grammar.literals.has(name)) return "literal";
	return found.input?.[(found.index ?? 0) + word.length] === "(" ? "function" : void 0;
}
var LINE_COMMENT = String.raw`\/\/[^\n]*`;
var BLOCK_COMMENT = String.raw`\/\*[^]*?(?:\*\/|(?![^]))`;
var HASH_COMMENT = String.raw`(?<![\w$&{])#[^\n]*`;
var DASH_COMMENT = String.raw`--[^\n]*`;
var DOUBLE_QUOTED = String.raw`"[^"\\\n]*(?:\\[^][^"\\\n]*)*"?`;
var SINGLE_QUOTED = String.raw`'[^'\\\n]*(?:\\[^][^'\\\n]*)*'?`;
var BACKQUOTED = "`[^`\\\\]*(?:\\\\[^][^`\\\\]*)*`?";
var TRIPLE_QUOTED = String.raw`"""[^]*?(?:"""|(?![^]))|'''[^]*?(?:'''|(?![^]))`;
var CHARACTER = String.raw`'(?:[^'\\\n]|\\[^\n]{1,10}?)'`;
var NUMBER = String.raw`(?<![\w$.])(?:0[xX][\da-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|\d[\d_]*(?:\.[\d_]+)?(?:[eE][+-]?\d+)?)\w{0,3}`;
var WORD = String.raw`[A-Za-z_$][\w$]*`;
var C_COMMENTS = `${LINE_COMMENT}|${BLOCK_COMMENT}`;
var C_WORDS = "break case char const continue default do double else enum extern float for goto if int long return short signed sizeof static struct switch typedef union unsigned void volatile while";
var DECORATOR = String.raw`(?<!\w)@[A-Za-z_][\w.]*`;
var DESCRIPTIONS = [
	{
		names: "javascript js jsx mjs cjs typescript ts tsx",
		keywords: "abstract as async await break case catch class const continue debugger declare default delete do else enum export extends finally for from function get if implements import in infer instanceof interface is keyof let namespace new of private protected public readonly return satisfies set static super switch this throw try type typeof var void while with yield any boolean never number object string unknown",
		literals: "true false null undefined NaN Infinity",
		comment: C_COMMENTS,
		string: `${DOUBLE_QUOTED}|${SINGLE_QUOTED}|${BACKQUOTED}`,
		more: { meta: DECORATOR }
	},
	{
		names: "python py python3 pycon",
		keywords: "and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try type while with yield",
		literals: "True False None self cls",
		comment: HASH_COMMENT,
		string: `(?<!\\w)[rRbBfFuUtT]{0,2}(?:${TRIPLE_QUOTED}|${DOUBLE_QUOTED}|${SINGLE_QUOTED})`,
		more: { meta: String.raw`^[ \t]*@[\w.]+|^>>> |^\.\.\. ` }
	},
	{
		names: "bash sh shell zsh console shellsession",
		keywords: "if then else elif fi for while until do done case esac in function select time return exit break continue local export readonly declare set unset shift source alias cd echo printf read test trap eval exec sudo",
		literals: "true false",
		comment: HASH_COMMENT,
		string: String.raw`"[^"\\]*(?:\\[^][^"\\]*)*"?|'[^']*'?`,
		more: {
			property: String.raw`\$(?:\w+|\{[^}\n]{0,100}\}|[@*#?$!-])`,
			meta: String.raw`^\$ `
		},
		word: String.raw`(?<![\w./-])[A-Za-z_][\w-]*`
	},
	{
		names: "json json5 jsonc jsonl ndjson",
		literals: "true false null",
		comment: C_COMMENTS,
		string: `${DOUBLE_QUOTED}|${SINGLE_QUOTED}`,
		more: { property: String.raw`"[^"\\\n]*(?:\\[^][^"\\\n]*)*"(?=[ \t]{0,20}:)` }
	},
	{
		names: "yaml yml",
		literals: "true false null yes no on off",
		comment: String.raw`(?<!\S)#[^\n]*`,
		string: `${DOUBLE_QUOTED}|(?<!\\w)${SINGLE_QUOTED}`,
		more: {
			property: String.raw`^[ \t]*(?:- +)?[\w./-]+(?=:(?:\s|$))`,
			meta: String.raw`^---[^\n]*|(?<!\S)[&*!][\w!]+`
		}
	},
	{
		names: "toml ini conf properties env dotenv",
		literals: "true false",
		comment: String.raw`(?<!\S)[#;][^\n]*`,
		string: `${TRIPLE_QUOTED}|${DOUBLE_QUOTED}|${SINGLE_QUOTED}`,
		more: {
			property: String.raw`^[ \t]*[\w."-]+(?=[ \t]{0,20}=)`,
			meta: String.raw`^[ \t]*\[[^\]\n]*\]{1,2}`
		}
	},
	{
		names: "sql postgres postgresql mysql sqlite",
		keywords: "add all alter and as asc begin between by case check column commit constraint create cross database default delete desc distinct drop else end except exists explain foreign from full group having if in index inner insert intersect into is join key left like limit not offset on or order outer over partition primary references returning right rollback select set table then transaction trigger union unique update using values view when where with bigint boolean char date decimal float integer int json jsonb numeric serial text timestamp uuid varchar",
		literals: "true false null",
		comment: `${DASH_COMMENT}|${BLOCK_COMMENT}`,
		string: `'[^']*'?|${DOUBLE_QUOTED}`,
		ignoresCase: true
	},
	{
		names: "html xml svg xhtml vue svelte",
		comment: String.raw`<!--[^]*?(?:-->|(?![^]))`,
		string: String.raw`(?<==[ \t]{0,5})(?:"[^"<]*"?|'[^'<]*'?)`,
		more: {
			meta: String.raw`<[!?][A-Za-z][^>]*>?|&#?\w{1,20};`,
			keyword: String.raw`<\/?[A-Za-z][\w:.-]*|(?<=[\w"'/ \t\n])\/?>`,
			property: String.raw`(?<=[\s"'])[\w:@.-]+(?==)`
		},
		number: "(?!)",
		word: "(?!)"
	},
	{
		names: "css scss sass less",
		keywords: "important",
		comment: C_COMMENTS,
		string: `${DOUBLE_QUOTED}|${SINGLE_QUOTED}`,
		more: {
			meta: String.raw`@[\w-]+`,
			property: String.raw`(?<![\w-])(?:--)?[a-z][a-z-]*(?=[ \t]{0,10}:[^:\n]*[;\n])|--[\w-]+|\$[\w-]+`,
			literal: String.raw`#[\da-fA-F]{3,8}(?![\w-])`
		},
		number: String.raw`(?<![\w-])-?\d[\d.]*(?:%|[a-z]{1,4})?`,
		word: "[A-Za-z_][\\w-]*"
	},
	{
		names: "diff patch",
		more: {
			meta: String.raw`^(?:@@|diff |index |\+\+\+|---)[^\n]*`,
			inserted: String.raw`^\+[^\n]*`,
			deleted: String.raw`^-[^\n]*`
		},
		number: "(?!)",
		word: "(?!)"
	},
	{
		names: "c h cpp c++ cc cxx hpp arduino objectivec",
		keywords: `${C_WORDS} alignas auto bool catch class concept consteval constexpr constinit co_await co_return co_yield decltype delete explicit export final friend inline mutable namespace new noexcept operator override private protected public register requires static_assert template this throw try typename using virtual`,
		literals: "true false NULL nullptr",
		comment: C_COMMENTS,
		string: `${DOUBLE_QUOTED}|(?<!\\w)${CHARACTER}`,
		more: { meta: String.raw`^[ \t]*#[ \t]*\w+` }
	},
	{
		names: "java kotlin kt scala groovy dart csharp cs",
		keywords: `${C_WORDS} abstract as async await base bool boolean by byte catch class companion data decimal def delegate do event explicit extends final finally foreach fun get given implements implicit import in init instanceof interface internal into is lateinit lazy lock match namespace native new null object open operator out override package params partial private protected public readonly record ref sealed set string super suspend synchronized this throw throws trait transient try typeof using val var virtual when where with yield`,
		literals: "true false null it",
		comment: C_COMMENTS,
		string: `${TRIPLE_QUOTED}|[$@]{0,2}${DOUBLE_QUOTED}|${CHARACTER}`,
		more: { meta: DECORATOR }
	},
	{
		names: "go golang",
		keywords: "break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var any bool byte error float32 float64 int int8 int16 int32 int64 rune string uint uint8 uint16 uint32 uint64",
		literals: "true false nil iota",
		comment: C_COMMENTS,
		string: `\`[^\`]*\`?|${DOUBLE_QUOTED}|${CHARACTER}`
	},
	{
		names: "rust rs",
		keywords: "as async await break const continue crate dyn else enum extern fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait type union unsafe use where while bool char f32 f64 i8 i16 i32 i64 i128 isize str u8 u16 u32 u64 u128 usize String Vec Option Result",
		literals: "true false None Some Ok Err",
		comment: C_COMMENTS,
		string: String.raw`b?"[^"\\]*(?:\\[^][^"\\]*)*"?|b?${CHARACTER}`,
		more: { meta: String.raw`#!?\[[^\]\n]*\]?|\b[a-z_]\w*!(?=[(\[{])` }
	},
	{
		names: "swift",
		keywords: "actor as associatedtype async await break case catch class continue default defer do else enum extension fallthrough fileprivate final for func get guard if import in init inout internal is lazy let mutating open operator override private protocol public repeat required rethrows return self Self set static struct subscript super switch throw throws try typealias var weak where while Bool Double Int String",
		literals: "true false nil",
		comment: C_COMMENTS,
		string: `${TRIPLE_QUOTED}|${DOUBLE_QUOTED}`,
		more: { meta: DECORATOR }
	},
	{
		names: "php",
		keywords: "abstract and array as break callable case catch class clone const continue declare default do echo else elseif enum extends final finally fn for foreach function global if implements include include_once instanceof interface isset list match namespace new or print private protected public readonly require require_once return static switch throw trait try unset use var while xor yield",
		literals: "true false null",
		comment: `${C_COMMENTS}|${HASH_COMMENT}`,
		string: `${DOUBLE_QUOTED}|${SINGLE_QUOTED}`,
		more: {
			meta: String.raw`<\?(?:php|=)?|\?>`,
			property: String.raw`\$\w+`
		},
		ignoresCase: true
	},
	{
		names: "ruby rb elixir ex exs",
		keywords: "alias and begin break case class def defined do else elsif end ensure for if in include module next not or private protected public raise redo require require_relative rescue retry return self super then undef unless until when while yield defmodule defp fn use import with",
		literals: "true false nil",
		comment: HASH_COMMENT,
		string: `${DOUBLE_QUOTED}|${SINGLE_QUOTED}`,
		more: {
			literal: String.raw`(?<![\w:]):[A-Za-z_]\w*[?!]?`,
			property: String.raw`@{1,2}\w+`
		}
	},
	{
		names: "lua haskell hs",
		keywords: "and break case class data deriving do else elseif end for forall function goto if import in infix instance let local module newtype not of or qualified repeat return then type until where while",
		literals: "true false nil True False",
		comment: String.raw`--\[\[[^]*?(?:\]\]|(?![^]))|${DASH_COMMENT}`,
		string: DOUBLE_QUOTED + `|(?<!\\w)${SINGLE_QUOTED}`
	},
	{
		names: "r julia jl",
		keywords: "abstract baremodule begin break catch const continue do else elseif end export finally for function global if import in let library local macro module mutable next primitive quote repeat require return struct try type using while",
		literals: "TRUE FALSE NULL NA NaN Inf true false nothing missing",
		comment: HASH_COMMENT,
		string: `${TRIPLE_QUOTED}|${DOUBLE_QUOTED}|(?<![\\w)\\]])${SINGLE_QUOTED}`,
		more: { meta: DECORATOR }
	},
	{
		names: "dockerfile docker containerfile",
		keywords: "from as run cmd label expose env add copy entrypoint volume user workdir arg onbuild stopsignal healthcheck shell",
		comment: String.raw`^[ \t]*#[^\n]*`,
		string: `${DOUBLE_QUOTED}|${SINGLE_QUOTED}`,
		more: { property: String.raw`\$(?:\w+|\{[^}\n]{0,100}\})` },
		word: String.raw`(?<![\w./-])(?:[A-Z]{2,}|[a-z]{2,})(?![\w./-])`,
		ignoresCase: true
	},
	{
		names: "makefile make",
		keywords: "ifeq ifneq ifdef ifndef else endif include define endef export override",
		comment: HASH_COMMENT,
		string: `${DOUBLE_QUOTED}|${SINGLE_QUOTED}`,
		more: {
			property: String.raw`\$(?:[@<^*?%]|[({][^)}\n]{0,100}[)}])`,
			function: String.raw`^[\w./%-]+(?=[ \t]{0,10}:)`
		}
	}
];
var described = new Map(DESCRIPTIONS.flatMap((one) => one.names.split(" ").map((name) => [name, one])));
var grammars = /* @__PURE__ */ new Map();
/** Return the grammar of a language, or undefined if it is not known. Created at its first use. */
function grammarOf(language) {
	const description = described.get(language.toLowerCase());
	if (description === void 0) return void 0;
	let grammar = grammars.get(description);
	if (grammar === void 0) {
		grammar = grammarFrom(description);
		grammars.set(description, grammar);
	}
	return grammar;
}
function grammarFrom(description) {
	const { comment, string, more } = description;
	const groups = {
		...comment !== void 0 && { comment },
		...more,
		...string !== void 0 && { string },
		number: description.number ?? NUMBER,
		word: description.word ?? WORD
	};
	const pattern = Object.entries(groups).map(([name, source]) => `(?<${name}>${source})`).join("|");
	return {
		pattern: new RegExp(pattern, "gm"),
		kinds: Object.keys(groups).filter((name) => name !== "word"),
		keywords: wordSet(description.keywords),
		literals: wordSet(description.literals),
		ignoresCase: description.ignoresCase ?? false
	};
}
function wordSet(words = "") {
	return new Set(words.split(" ").filter(Boolean));
}
//#endregion
export { ApiError, Breadcrumbs, Client, EventStream, MAX_HIGHLIGHTED_LENGTH, MAX_NOTE_LENGTH, Outbox, Ratings, Sessions, SseParser, describeFailure, highlight, isKeyExpired, messageOf, newId, parseMarkdown, parseTex, readAllMessages, renderMarkdown, retryDelay, safeAddress, sentence, splitMarkdown, tokenClaims, transcriptAsJson, transcriptAsMarkdown, transcriptName, withQuery };
