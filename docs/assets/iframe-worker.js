/* Search in pages that are read from disk. Browsers refuse workers there: this one runs their script in a frame. */
if (location.protocol === 'file:') {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.frame = document.createElement('iframe');
      this.frame.hidden = true;
      this.ready = new Promise((resolve) => {
        this.frame.addEventListener('load', () => this.start(new URL(url, document.baseURI), resolve), { once: true });
      });
      document.addEventListener('DOMContentLoaded', () => this.attach());
      if (document.readyState !== 'loading') this.attach();
    }

    attach() {
      if (!this.frame.isConnected) document.body.append(this.frame);
    }

    /* Give the frame what a script of a worker expects, then load the script. */
    start(url, resolve) {
      const inside = this.frame.contentWindow;
      const load = (address) =>
        new Promise((done) => {
          const script = inside.document.createElement('script');
          script.src = new URL(address, url);
          script.onload = done;
          script.onerror = done;
          inside.document.head.append(script);
        });
      inside.postMessage = (data) => this.answer(data);
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve());
      load(url).then(() => resolve(inside));
    }

    answer(data) {
      const event = new MessageEvent('message', { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new inside.MessageEvent('message', { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
