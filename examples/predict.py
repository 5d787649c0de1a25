"""Name what a picture shows: the five most probable classes, by a ResNet or an AlexNet.

The weights are the best of train.py, or a file of weights that torchvision downloads.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "training"))  # the command line of all examples

import command_line
from alexnet.model import AlexNet
from resnet.model import resnet18, resnet34, resnet50, resnet101

import minigraph as mg
from minigraph import ops
from minigraph.data import read_image

MODELS = {
    "alexnet": AlexNet,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet101": resnet101,
}
TOP = 5  # classes to print


def trained(model, weights, size):
    """Return a network with the weights of a file, for pictures of size x size pixels."""
    state = mg.load(weights)
    last = "classifier.6.bias" if model == "alexnet" else "fc.bias"
    if last not in state:
        raise mg.GraphError(f"{weights} has no {last}: it holds no weights of --model {model}")
    options = {} if model == "alexnet" else {"small_stem": size < 64}
    net = MODELS[model](len(state[last]), **options)
    net.load_state_dict(state)
    return net.eval()


def probabilities(net, picture, device=None):
    """Return the probability of each class of a picture (3, size, size)."""
    pictures = mg.input("pictures", (1, *picture.shape))
    outputs = ops.softmax(net(pictures), axis=1)
    # For a single call, measuring which algorithms are the fastest takes longer than it saves.
    function = mg.comp_graph(device).compile([pictures], outputs, optimize=False)
    return function(picture[None])[0]


def names_of(path, count):
    """Return the names of `count` classes: a file's lines, a folder's subfolders, or numbers."""
    if path is None:
        return [f"class {number}" for number in range(count)]
    try:
        if Path(path).is_dir():
            names = sorted(entry.name for entry in Path(path).iterdir() if entry.is_dir())
        else:
            names = Path(path).read_text().splitlines()
    except (OSError, ValueError) as error:
        raise mg.GraphError(f"--classes {path} cannot be read ({error})") from error
    if len(names) != count:
        raise mg.GraphError(f"--classes {path} has {len(names)} names; the network {count} classes")
    return names


def main():
    parser = command_line.Parser(description=__doc__)
    add = parser.add_argument
    add("weights", metavar="WEIGHTS", help="a file of safetensors or torch.save")
    add("picture", metavar="PICTURE", help="a JPEG or PNG file")
    add("--model", choices=MODELS, default="resnet18", help="(default: resnet18)")
    add(
        "--classes",
        metavar="PATH",
        help="a file with a name a line, or a folder with one for each class",
    )
    add("--image-size", type=int, default=224, metavar="N", help="pixels a side (default: 224)")
    add("--device", metavar="D", help="such as cpu (default: $MINIGRAPH_DEVICE, else cpu)")
    args = parser.parse_args()

    picture = read_image(args.picture, args.image_size)
    net = trained(args.model, args.weights, args.image_size)
    shares = probabilities(net, picture, args.device)
    names = names_of(args.classes, len(shares))
    for number in (-shares).argsort()[:TOP]:
        print(f"{shares[number]:7.2%}  {names[number]}")


if __name__ == "__main__":
    command_line.run(main)
