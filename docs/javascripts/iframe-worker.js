// Browsers start no worker for a page that is read from disk, and search runs in one.  This worker
// runs in a hidden frame instead.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((resolve) => frame.addEventListener("load", resolve, { once: true }));
      document.body.append(frame);
      this.inside = frame.contentWindow;
      frame.contentDocument.open();
      frame.contentDocument.write(`<!doctype html><script src="${url}"></script>`);
      this.inside.postMessage = (data) => this.receive(new MessageEvent("message", { data }));
      this.inside.importScripts = (...urls) => Promise.all(urls.map((each) => this.load(each)));
      frame.contentDocument.close();
    }

    receive(event) {
      this.dispatchEvent(event);
      this.onmessage?.(event);
    }

    load(url) {
      const script = this.inside.document.createElement("script");
      script.src = url;
      this.inside.document.head.append(script);
      return new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = reject;
      });
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
