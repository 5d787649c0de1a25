"""Train a ResNet of PyTorch on handwritten digits, each step in one call of minigraph."""

import argparse
import time

import torch
from model import resnet18, resnet50
from torch.nn import functional as F
from torch.utils.data import DataLoader

import minigraph.torch as mgt
from minigraph.data import Digits

MODELS = {"resnet18": resnet18, "resnet50": resnet50}


def eager(model, loss, optimizer):
    """Return a training step that PyTorch runs, for comparison."""

    def step(images, labels):
        optimizer.zero_grad()
        value = loss(model(images), labels)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


@torch.no_grad()
def accuracy(model, loader):
    """Return the share of images that a model classifies correctly."""
    model.eval()
    correct = sum((model(images).argmax(1) == labels).sum() for images, labels in loader)
    model.train()
    return float(correct) / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="resnet18")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layers")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eager", action="store_true", help="let PyTorch run the steps")
    parser.add_argument("--checkpoint", metavar="FILE", help="write the state after each epoch")
    parser.add_argument(
        "--resume", metavar="FILE", help="go on from a checkpoint, with or without --eager"
    )
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train = DataLoader(Digits(), args.batch_size, shuffle=True, drop_last=True)
    test = DataLoader(Digits(train=False), 64)
    model = MODELS[args.model](10, channels=1, width=args.width, small_stem=True)
    optimizer = torch.optim.Adam(model.parameters(), args.lr)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.1)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    if args.resume:
        saved = torch.load(args.resume)
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    example = next(iter(train))
    if args.eager:
        step = eager(model, F.cross_entropy, optimizer)
    else:
        step = mgt.training_step(model, F.cross_entropy, optimizer, example)

    for epoch in range(schedule.last_epoch, args.epochs):
        start = time.perf_counter()
        losses = [float(step(images, labels)) for images, labels in train]
        seconds = time.perf_counter() - start
        schedule.step()
        mean = sum(losses) / len(losses)
        print(f"epoch {epoch + 1}: loss {mean:.4f}, {seconds:.1f} s, ", end="")
        print(f"test accuracy {accuracy(model, test):.2%}")
        if args.checkpoint:
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save(state, args.checkpoint)


if __name__ == "__main__":
    main()
